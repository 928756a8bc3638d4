"""Computes attention over a forest, in which every node sees only itself and its ancestors.

Copies the nodes' queries, keys and values into rows. Rows of similar length form a rectangle. Runs
causal attention on the rectangles. Each node's result is read from one of its rows. If rows share
about 5 % of their tokens or more, a tree is faster (`python -m benchmarks.learner --crossover`).

Axes: N nodes, B rows, T positions, H heads, E head size; see r3l.training.micro_batch.Nodes.
"""

import logging
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from r3l.errors import UserError

log = logging.getLogger(__name__)

Pack = Literal["rows", "tree"]
TREE = "r3l_tree"


def resolve(pack: str, lm: Any) -> Pack:
    """Replaces `auto` by `tree` if the model allows trees, otherwise by `rows`. Raises UserError
    for `tree` if the model does not allow trees."""
    if pack == "rows":
        return "rows"
    obstacle = obstacle_of(lm)
    if not obstacle:
        return "tree"
    if pack == "auto":
        log.info("rows are padded, not packed as trees: the model %s", obstacle)
        return "rows"
    raise UserError(f"learner.pack={pack}: the model {obstacle}; set learner.pack=rows")


def tree_attention(
    module: Any,
    query_1HNE: Tensor,
    key_1HNE: Tensor,
    value_1HNE: Tensor,
    attention_mask: None,
    *,
    rectangles: Sequence[Tensor],
    places_N: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attends from every node to itself and its ancestors. Returns [1, N, H, E]. transformers calls
    this function in every layer."""

    def rows(nodes_1HNE: Tensor, paths_BT: Tensor) -> Tensor:
        nodes_NHE = nodes_1HNE.transpose(1, 2)[0]
        rows_BTHE = nodes_NHE.index_select(0, paths_BT.flatten()).unflatten(0, paths_BT.shape)
        return rows_BTHE.transpose(1, 2)

    states, dtype = [query_1HNE, key_1HNE, value_1HNE], value_1HNE.dtype
    if dtype == torch.bfloat16 and query_1HNE.device.type == "cpu":
        # With rows of 140 tokens, PyTorch takes 1.7 times the CPU time for it in bfloat16.
        states = [each.float() for each in states]
    outs = []
    with torch.autocast("cpu", enabled=False):
        for paths_BT in rectangles:
            laid_out = (rows(each, paths_BT) for each in states)
            out_BTHE, _ = sdpa_attention_forward(module, *laid_out, None, **options)
            outs.append(out_BTHE.flatten(0, 1))
    return torch.cat(outs).to(dtype).index_select(0, places_N)[None], None


def obstacle_of(lm: Any) -> str:
    """Returns the reason why the model cannot be packed as a tree; "" if it can."""
    config = lm.config.get_text_config()
    if not getattr(lm, "_supports_attention_backend", False):
        return "does not support another attention function"
    kinds = set(getattr(config, "layer_types", None) or ())
    if not kinds and getattr(config, "sliding_window", None):
        kinds = {"sliding_attention"}
    if kinds - {"full_attention"}:
        return f"has layers of {', '.join(sorted(kinds - {'full_attention'}))}"
    return ""


AttentionInterface.register(TREE, tree_attention)
