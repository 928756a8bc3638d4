"""Computes the policy's log-probabilities and entropies of selected tokens.

    tree:  nodes ─► layers, each node once ─► hidden ─┐        (attention: learner.step.attention)
    rows:  padded rows ─► layers ─► hidden of nodes ──┴─► selected nodes ─► head ─► rows

The vocabulary projection is by far the widest layer. To save memory, it runs in chunks, and only at
selected positions.

Axes: B rows, T positions, N nodes, K selected nodes, V vocabulary.
"""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from learner.step import adapters, attention
from learner.step.attention import Pack
from learner.step.batch import Nodes
from r3l.errors import UserError
from r3l.run.settings.learner import Compute, LoraConfig

CHUNK = 1024
"""Selected positions projected at a time."""
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
        self, nodes: Nodes, select_BT: Tensor, temperatures_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns (logprobs_BT, entropy_BT) in nats, float32. Both are 0 where `select_BT` is
        False.

        `logprobs_BT[b, t]` is log π(token t | tokens before t), π ∝ exp(logits / temperature of row
        b). Position 0 must not be selected. Entropies have no gradient. If rows of the
        same temperature share a node, the head computes this node once.
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
            logprobs_K, entropy_K = self.head(hidden_KD, targets_K, temperatures_K)
        blank = (logprobs_K[0] * 0.0).expand(select_BT.shape)
        # On a CPU, the gradient of x[indices] is added up in any order, by several threads.
        logprobs_BT = blank.masked_scatter(select_BT, logprobs_K[1:].index_select(0, place))
        entropy_BT = blank.detach().masked_scatter(select_BT, entropy_K[1:][place])
        return logprobs_BT, entropy_BT

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


def score(
    head: nn.Linear, hidden_ND: Tensor, targets_N: Tensor, temperatures_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns (log-probabilities of the targets, entropies), both float32 [N]. To save memory, the
    backward pass recomputes the logits of all chunks but the last."""
    full = (len(targets_N) - 1) // CHUNK
    sizes = [len(targets_N) - full * CHUNK, *[CHUNK] * full]  # the last is not the small one
    *earlier, last = zip(
        hidden_ND.split(sizes), targets_N.split(sizes), temperatures_N.split(sizes), strict=True
    )
    parts = [
        checkpoint(_score_chunk, head.weight, head.bias, *chunk, use_reentrant=False)
        for chunk in earlier
    ]
    parts.append(_score_chunk(head.weight, head.bias, *last))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])


def _score_chunk(
    weight_VD: Tensor,
    bias_V: Tensor | None,
    hidden_ND: Tensor,
    targets_N: Tensor,
    temperatures_N: Tensor,
) -> tuple[Tensor, Tensor]:
    logits_NV = nn.functional.linear(hidden_ND, weight_VD, bias_V).float()
    # In place: another tensor of this size would raise the peak of memory.
    logprobs_NV = logits_NV.div_(temperatures_N[:, None]).log_softmax(dim=-1)
    logprobs_N = logprobs_NV.gather(1, targets_N[:, None])[:, 0]
    with torch.no_grad():  # the recomputation ends before this
        entropy_N = -logprobs_NV.exp().mul_(logprobs_NV).sum(dim=-1)
    return logprobs_N, entropy_N


def load_model(
    folder: Path,
    dtype: torch.dtype,
    pack: str = "auto",
    *,
    implementation: str = "auto",
    compute: Compute = "dtype",
    gradient_checkpointing: bool = False,
    lora: LoraConfig | None = None,
    adapter: Path | None = None,
) -> PolicyModule:
    """Loads a causal language model for training. For the settings, see LearnerConfig. `adapter`:
    folder of adapters to train further. Raises UserError if loading fails, or if a setting does not
    fit the model."""
    from transformers import AutoModelForCausalLM

    chosen = {} if implementation == "auto" else {"attn_implementation": implementation}
    pack = "rows" if chosen else pack
    try:
        lm = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False, **chosen
        )
    except (OSError, ValueError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"model {folder}: cannot be loaded as a causal language model ({reason})"
        ) from None
    # Dropout would make the learner's log-probabilities disagree with the engine's.
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in [n for n, v in vars(module).items() if "dropout" in n and type(v) is float]:
            setattr(module, name, 0.0)
    if lora is not None and lora.rank:
        adapters.add_adapters(lm, lora, folder)
        if adapter is not None:
            adapters.load_adapters(lm, adapter)
    if gradient_checkpointing:
        lm.gradient_checkpointing_enable({"use_reentrant": False})
        lm.train()  # transformers checkpoints only modules in training mode
    return PolicyModule(lm, attention.resolve(pack, lm), resolve_compute(compute, lm))


def resolve_dtype(name: str) -> torch.dtype:
    """Returns the torch dtype for `learner.dtype`; auto is float32 on CPU and bfloat16 on GPU."""
    if name == "auto":
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


def resolve_compute(name: Compute, lm: Any) -> torch.dtype | None:
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
