"""Attention over a forest: every node sees itself and its ancestors, and nothing else.

Two ways to the same result, through the public attention interfaces of transformers:

- `tree`: queries, keys and values are laid out as rows again, the model's own causal attention
  runs on them, and each node takes its result from one of its rows. Any device; no mask exists.
- `flex`: FlexAttention on the nodes, compiled, with a block mask that skips what no node of a block
  sees. PyTorch trains through it on GPUs only. Its losses and gradients are tested in eager mode
  on a CPU; the compiled kernels have not been run, nor has its speed been measured.

auto is tree: a default is what has been run. Laying out rows costs something. Measured on one CPU
core (8 million parameters, 8 rows of 256 tokens, `python -m benchmarks.learner --crossover`), a
step as a tree takes 9 % more than as rows where nothing is shared, 10 % less where 9 % of the
tokens are, 30 % less where 44 % are: it pays from about 5 % on. Attempts at one task share at least
their prompt, so auto is never rows where the model leaves a choice.

Axes: N nodes, B rows, T positions, H heads, E head size; nodes as in learner.step.batch.Nodes.
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from learner.step.batch import Nodes
from r3l.errors import UserError

log = logging.getLogger(__name__)

Pack = Literal["rows", "tree", "flex"]
TREE, FLEX = "r3l_tree", "flex_attention"
LEAST_FLEX_HEAD = 16
"""FlexAttention's kernels take no smaller heads."""


def resolve(pack: str, lm: Any) -> Pack:
    """The packing for `learner.pack`, this model and this machine.

    auto is tree, or rows where the model does not allow it. Raises UserError where what was asked
    for cannot be had.
    """
    obstacle = _obstacle(lm)
    if pack == "auto":
        if obstacle:
            log.info("rows are padded, not packed as trees: the model %s", obstacle)
            return "rows"
        return "tree"
    if pack == "rows":
        return "rows"
    if obstacle:
        raise UserError(f"learner.pack={pack}: the model {obstacle}; set learner.pack=rows")
    if pack == "flex" and (against_flex := _obstacle_to_flex(lm)):
        raise UserError(f"learner.pack=flex: {against_flex}; set learner.pack=tree")
    return "flex" if pack == "flex" else "tree"


def install(lm: Any, pack: Pack) -> None:
    """Make the model attend as `pack` needs it."""
    if pack != "rows":
        lm.set_attn_implementation(TREE if pack == "tree" else FLEX)


def arguments(nodes: Nodes, pack: Pack) -> dict[str, Any]:
    """What the decoder must be given beside token and position ids."""
    if pack == "flex":
        return {"attention_mask": block_mask(nodes.ends_N)}
    return {"paths_BT": nodes.paths_BT, "homes_N": nodes.homes_N}


def block_mask(ends_N: Tensor) -> Any:
    """FlexAttention's mask: node q sees node k iff k <= q < ends[k]. Takes a few N² bytes for a
    moment."""
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < ends_N[k])

    count = len(ends_N)
    return create_block_mask(sees, 1, None, count, count, device=str(ends_N.device))


def tree_attention(
    module: Any,
    query_1HNE: Tensor,
    key_1HNE: Tensor,
    value_1HNE: Tensor,
    attention_mask: None,
    *,
    paths_BT: Tensor,
    homes_N: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention of every node to its ancestors, [1, N, H, E]; an attention function of
    transformers, called once in every layer."""

    def rows(nodes_1HNE: Tensor) -> Tensor:
        nodes_NHE = nodes_1HNE.transpose(1, 2)[0]
        rows_BTHE = nodes_NHE.index_select(0, paths_BT.flatten()).unflatten(0, paths_BT.shape)
        return rows_BTHE.transpose(1, 2)

    out_BTHE, _ = sdpa_attention_forward(
        module, rows(query_1HNE), rows(key_1HNE), rows(value_1HNE), None, **options
    )
    return out_BTHE.flatten(0, 1).index_select(0, homes_N)[None], None


def _obstacle(lm: Any) -> str:
    """Why the model cannot be packed as a tree; empty when it can."""
    config = lm.config.get_text_config()
    if not getattr(lm, "_supports_attention_backend", False):
        return "does not take another attention function"
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds and getattr(config, "sliding_window", None):
        kinds = {"sliding_attention"}
    if kinds - {"full_attention"}:
        return f"has layers of {', '.join(sorted(kinds - {'full_attention'}))}"
    return ""


def _obstacle_to_flex(lm: Any) -> str:
    """Why FlexAttention cannot train this model on this machine; empty when it can."""
    config = lm.config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if not torch.cuda.is_available():
        return "FlexAttention trains on a GPU only"
    if not getattr(lm, "_supports_flex_attn", False):
        return "the model does not take FlexAttention"
    if head < LEAST_FLEX_HEAD:
        return f"the model's heads have {head} dimensions, FlexAttention needs {LEAST_FLEX_HEAD}"
    return ""


AttentionInterface.register(TREE, tree_attention)
