"""Computes the policy's log-probabilities and entropies of selected tokens.

    tree:  nodes ─► layers, each node once ─► hidden ─┐        (attention: r3l.training.attention)
    rows:  padded rows ─► layers ─► hidden of nodes ──┴─► selected nodes ─► head ─► rows

The vocabulary projection is by far the widest layer. To save memory, it runs in chunks, and only at
selected positions.

Axes: B rows, T positions, N nodes, K selected nodes, V vocabulary.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from r3l.errors import UserError
from r3l.training import attention
from r3l.training.attention import Pack
from r3l.training.micro_batch import Nodes

Scores = tuple[Tensor, ...]
"""logprobs_BT, entropy_BT; then, if the `top` tokens were asked for, their ids_BTk, logprobs_BTk.
All are 0 at positions that were not selected."""
CHUNK = 1024
"""Selected positions projected at a time."""
ALIGNMENT = 64
"""Bytes. PyTorch's own memory begins at a multiple of it."""
LARGE = 10_000_000
"""Parameters of a model that `learner.compute=auto` computes in bfloat16 where a CPU has it.
Smaller models are quick, and their log-probabilities stay exact."""


class PolicyModule(nn.Module):
    """Wraps a Hugging Face causal language model, and computes the head in chunks. `pack`: token
    layout in the layers (does not change results). `compute`: dtype of matrix products (default:
    the weights' dtype)."""

    def __init__(self, lm: Any, pack: Pack = "rows", compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.lm, self.pack, self.compute = lm, pack, compute
        if pack == "tree":
            lm.set_attn_implementation(attention.TREE)
        self.head = lm.get_output_embeddings()
        # The head is called once per forward pass, for any number of chunks: ZeRO 3 gathers a
        # module's weights when it is called, and all ranks must call the same modules.
        self.head.forward = partial(score, self.head)

    def forward(
        self, nodes: Nodes, select_BT: Tensor, temperatures_B: Tensor, top: int = 0
    ) -> Scores:
        """Returns log-probabilities and entropies in nats, float32. With `top`, also returns the
        tokens that were likeliest at each position.

        `logprobs_BT[b, t]` is log π(token t | tokens before t), π ∝ exp(logits / temperature of row
        b). Position 0 must not be selected. Only log-probabilities of the tokens themselves have a
        gradient. If rows of the same temperature share a node, the head computes this node once.
        """
        levels_L, level_B = temperatures_B.unique(return_inverse=True)
        pairs_BT = nodes.paths_BT * len(levels_L) + level_B[:, None]
        pairs_K, place = pairs_BT[select_BT].unique(return_inverse=True)
        # One position more than selected, so that the head has work on every rank.
        pairs_K = nn.functional.pad(pairs_K, (1, 0))
        chosen_K, temperatures_K = pairs_K // len(levels_L), levels_L[pairs_K % len(levels_L)]
        with torch.autocast(select_BT.device.type, self.compute, enabled=self.compute is not None):
            hidden_KD = self._hidden(nodes, nodes.parents_N[chosen_K])
            targets_K = nodes.token_ids_N[chosen_K]
            scores_K = self.head(hidden_KD, targets_K, temperatures_K, top)
        return in_rows(select_BT, scores_K, place)

    def _hidden(self, nodes: Nodes, wanted_K: Tensor) -> Tensor:
        """Computes the hidden states [K, D] of the last layer at the wanted nodes."""
        decoder = self.lm.get_decoder()
        if self.pack == "rows":
            # Right padding needs no mask: in a causal model no earlier position attends to it.
            ids_BT = nodes.token_ids_N[nodes.paths_BT]
            hidden_BTD = decoder(input_ids=ids_BT, use_cache=False).last_hidden_state
            return hidden_BTD.flatten(0, 1).index_select(0, nodes.homes_N[wanted_K])
        hidden_1ND = decoder(
            input_ids=nodes.token_ids_N[None],
            position_ids=nodes.positions_N[None],
            use_cache=False,
            rectangles=nodes.rectangles,
            places_N=nodes.places_N,
        ).last_hidden_state
        return hidden_1ND[0].index_select(0, wanted_K)


class LogitsModule(nn.Module):
    """Wraps any module that maps token ids [B, T] to logits [B, T, V], or to an object with such
    `logits`. It must be causal: the logits at t depend on the tokens up to t, and predict token t +
    1. Computes the logits at all positions."""

    pack: Pack = "rows"

    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        self.lm = lm

    def forward(
        self, nodes: Nodes, select_BT: Tensor, temperatures_B: Tensor, top: int = 0
    ) -> Scores:
        """Returns what PolicyModule.forward does. Raises UserError for logits of another shape."""
        ids_BT = nodes.token_ids_N[nodes.paths_BT]
        answer = self.lm(ids_BT)
        logits_BTV = getattr(answer, "logits", answer)
        if not isinstance(logits_BTV, Tensor) or logits_BTV.shape[:-1] != ids_BT.shape:
            got = tuple(logits_BTV.shape) if isinstance(logits_BTV, Tensor) else type(logits_BTV)
            raise UserError(
                f"model: maps token ids of shape {tuple(ids_BT.shape)} to {got}; it must return "
                "logits of this shape with the vocabulary as one more dimension"
            )
        # One position more than selected, as PolicyModule has.
        before_BT = select_BT.roll(-1, dims=1)
        logits_KV = torch.cat([logits_BTV[:1, 0], logits_BTV[before_BT]]).float()
        targets_K = nn.functional.pad(ids_BT[select_BT], (1, 0))
        heat_K = nn.functional.pad(temperatures_B[:, None].expand_as(select_BT)[select_BT], (1, 0))
        heat_K[0] = 1.0
        scores_K = scores_of(logits_KV, targets_K, heat_K, top)
        return in_rows(select_BT, scores_K, torch.arange(len(targets_K) - 1, device=ids_BT.device))


def in_rows(select_BT: Tensor, scores_K: Scores, place: Tensor) -> Scores:
    """Puts the scores of nodes at the selected positions. Skips the first score, which belongs to
    no position. `place`: for each selected position, the index of its score among the remaining
    ones."""
    logprobs_K, *others_K = scores_K
    blank = (logprobs_K[0] * 0.0).expand(select_BT.shape)
    # On a CPU, the gradient of x[indices] is added up in any order, by several threads.
    found = [blank.masked_scatter(select_BT, logprobs_K[1:].index_select(0, place))]
    for other_K in others_K:
        other_BT = other_K.new_zeros((*select_BT.shape, *other_K.shape[1:]))
        other_BT[select_BT] = other_K[1:][place]
        found.append(other_BT)
    return tuple(found)


def score(
    head: nn.Linear, hidden_ND: Tensor, targets_N: Tensor, temperatures_N: Tensor, top: int = 0
) -> Scores:
    """Scores nodes as `scores_of`. To save memory, the backward pass recomputes the logits of all
    chunks but the last."""
    full = (len(targets_N) - 1) // CHUNK
    sizes = [len(targets_N) - full * CHUNK, *[CHUNK] * full]  # the last is not the small one
    *earlier, last = zip(
        hidden_ND.split(sizes), targets_N.split(sizes), temperatures_N.split(sizes), strict=True
    )
    parts = [
        checkpoint(_score_chunk, head.weight, head.bias, *chunk, top, use_reentrant=False)
        for chunk in earlier
    ]
    parts.append(_score_chunk(head.weight, head.bias, *last, top))
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def _score_chunk(
    weight_VD: Tensor,
    bias_V: Tensor | None,
    hidden_ND: Tensor,
    targets_N: Tensor,
    temperatures_N: Tensor,
    top: int,
) -> Scores:
    logits_NV = nn.functional.linear(hidden_ND, weight_VD, bias_V).float()
    return scores_of(logits_NV, targets_N, temperatures_N, top)


def scores_of(logits_NV: Tensor, targets_N: Tensor, temperatures_N: Tensor, top: int) -> Scores:
    """Returns log-probabilities of the targets and entropies, float32 [N]; with `top`, also the
    likeliest tokens and their log-probabilities, [N, top]. Overwrites the logits."""
    # In place: another tensor of this size would raise the peak of memory.
    logprobs_NV = logits_NV.div_(temperatures_N[:, None]).log_softmax(dim=-1)
    logprobs_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
    with torch.no_grad():  # the recomputation of a chunk ends before this
        entropy_N = -logprobs_NV.exp().mul_(logprobs_NV).sum(dim=-1)
        if not top:
            return logprobs_N, entropy_N
        top_logprobs_Nk, top_ids_Nk = logprobs_NV.topk(top, dim=-1)
    return logprobs_N, entropy_N, top_ids_Nk, top_logprobs_Nk


def load_model(
    folder: Path,
    dtype: torch.dtype,
    pack: str = "auto",
    *,
    implementation: str = "auto",
    compute: str = "dtype",
    gradient_checkpointing: bool = False,
    adapt: Callable[[Any], None] = lambda lm: None,
) -> PolicyModule:
    """Loads a causal language model for training. For the settings, see LearnerConfig. `adapt`:
    changes the model, such as by adding adapters. Raises UserError if loading fails, or if a
    setting does not fit the model."""
    chosen = {} if implementation == "auto" else {"attn_implementation": implementation}
    pack = "rows" if chosen else pack
    lm = load_whole(folder, dtype, f"model {folder}", **chosen)
    # Dropout would make the learner's log-probabilities disagree with the engine's.
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in [n for n, v in vars(module).items() if "dropout" in n and type(v) is float]:
            setattr(module, name, 0.0)
    align(lm)
    adapt(lm)
    if gradient_checkpointing:
        lm.gradient_checkpointing_enable({"use_reentrant": False})
        lm.train()  # transformers checkpoints only modules in training mode
    return PolicyModule(lm, attention.resolve(pack, lm), resolve_compute(compute, lm))


def load_whole(folder: Path, dtype: torch.dtype, called: str, **more: Any) -> Any:
    """Loads a causal language model with transformers. Raises UserError, which begins with
    `called`, if that fails or a parameter is not in the files."""
    from transformers import AutoModelForCausalLM

    try:
        lm, found = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # reported below
            output_loading_info=True,
            **more,
        )
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"{called}: cannot be loaded as a causal language model ({reason})"
        ) from None
    check_loaded(found, called)
    return lm


def check_loaded(found: Mapping[str, Any], called: str) -> None:
    """Raises UserError if loading gave a parameter random numbers, because the folder lacks it or
    has it in another shape. `found`: what transformers reports about loading."""
    for name, stored, wanted in sorted(found["mismatched_keys"]):
        raise UserError(
            f"{called}: {name} has the shape {list(stored)}, but config.json says {list(wanted)}; "
            "copy config.json and weights from the same place"
        )
    if missing := sorted(found["missing_keys"]):
        raise UserError(
            f"{called}: the weights lack {missing[0]} ({len(missing)} in all), which the model of "
            "config.json has; copy config.json and weights from the same place"
        )


def align(lm: nn.Module) -> None:
    """Moves parameters on the CPU to addresses that are multiples of ALIGNMENT. The last bits of a
    product with a single row depend on the address of the weights, which transformers takes from
    their place in the file. This place differs between a checkpoint and the model that the run
    started with."""
    for weights in () if torch.cuda.is_available() else lm.parameters():
        if weights.data_ptr() % ALIGNMENT:
            weights.data = weights.data.clone()


def resolve_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype for `learner.dtype`; auto is float32 on CPU and bfloat16 on GPU."""
    if name == "auto":
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def resolve_compute(name: str, lm: Any) -> torch.dtype | None:
    """Returns the torch dtype for `learner.compute`, or None for that of the weights."""
    if name == "auto":
        large = sum(weights.numel() for weights in lm.parameters()) >= LARGE
        on_cpu = lm.dtype == torch.float32 and not torch.cuda.is_available()
        name = "bfloat16" if large and on_cpu and _has_bfloat16() else "dtype"
    return torch.bfloat16 if name == "bfloat16" else None


def _has_bfloat16() -> bool:
    """Whether this CPU multiplies matrices in bfloat16. Architectures other than x86 lack both
    names."""
    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
