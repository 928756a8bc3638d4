"""Turns rows into micro-batches.

    rows of a step ─► micro-batches, balanced over ranks  ─►  tensors

Axes: B rows of a micro-batch, T padded positions, N distinct tokens (nodes of
r3l.training.prefix_forest). The loss of a step does not depend on how its rows are cut into
micro-batches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from r3l.algorithms.rows import Retry, Row
from r3l.errors import UserError
from r3l.records import Int32
from r3l.training import prefix_forest
from r3l.training.attention import Pack


@dataclass(frozen=True)
class Nodes:
    """The forest of a micro-batch (r3l.training.prefix_forest) and the rows' paths in it, int64.

    `paths_BT[b, t]`: the node of token t of row b, 0 in the padding. `homes_N[n]`: one place of
    node n in the flattened `paths_BT`. Tree attention uses `rectangles` and `places_N`, which have
    less padding (r3l.training.prefix_forest.lay_out).
    """

    token_ids_N: Tensor
    positions_N: Tensor
    parents_N: Tensor
    homes_N: Tensor
    paths_BT: Tensor
    rectangles: tuple[Tensor, ...]
    places_N: Tensor


@dataclass(frozen=True)
class MicroBatch:
    """B rows as tensors, padded on the right to T tokens: the fields of r3l.algorithms.rows.Row.
    Outside sampled responses, `old_logprobs_BT` is 0. `reference_BT` is NaN where a row has none.
    `losses`: B names. `retries`: for each row the retry whose main conversation it is, or None.
    `unmeasured_B`: rows with unknown `old_logprobs_BT`. `input_tokens` excludes padding; 0: no
    rows."""

    nodes: Nodes
    mask_BT: Tensor
    old_logprobs_BT: Tensor
    advantages_BT: Tensor
    weights_BT: Tensor
    reference_BT: Tensor | None
    losses: tuple[str, ...]
    distilled_B: Tensor
    temperatures_B: Tensor
    reused_B: Tensor
    retries: tuple[Retry | None, ...]
    fresh_BT: Tensor
    input_tokens: int
    unmeasured_B: Tensor | None = None


def check_tokens(sequences: Iterable[tuple[str, Int32]], vocabulary: int) -> None:
    """Refuses tokens outside the model's vocabulary. `sequences`: each with a name for errors."""
    for name, token_ids in sequences:
        highest = int(token_ids.max(initial=0))
        if highest >= vocabulary:
            raise UserError(
                f"{name}: holds token {highest}, but the model's vocabulary ends at "
                f"{vocabulary - 1}; train with the model whose tokenizer filled this buffer"
            )


def micro_batches(
    rows: Sequence[Row], token_budget: int, ranks: int, *, shared: bool
) -> list[list[list[Row]]]:
    """Cuts rows into micro-batches of at most `token_budget` computed tokens. A longer row is a
    micro-batch of its own. Each rank gets equally many micro-batches, largest first; the last may
    be empty. With `shared`, a common prefix counts once, and padding does not count."""
    cut = _runs if shared else _rectangles
    rows = [row for row in rows if len(row.token_ids)]
    bins, sizes = cut(rows, token_budget)
    best = _spread(bins, sizes, ranks)
    fair = -(-sum(sizes) // ranks)
    # Smaller bins can be shared out more evenly, but repeat shared prefixes more often.
    for limit in (fair, fair // 2) if ranks > 1 else ():
        if 0 < limit < token_budget:
            best = min(best, _spread(*cut(rows, limit), ranks), key=lambda plan: plan[0])
    return best[1]


def _spread(
    bins: list[list[Row]], sizes: list[int], ranks: int
) -> tuple[int, list[list[list[Row]]]]:
    """Gives each bin, largest first, to the emptiest rank. Returns (size of the fullest rank, bins
    of each rank)."""
    share: list[list[list[Row]]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for index in sorted(range(len(bins)), key=lambda i: -sizes[i]):
        rank = load.index(min(load))
        share[rank].append(bins[index])
        load[rank] += sizes[index]
    depth = max((len(s) for s in share), default=0) or 1
    return max(load), [s + [[]] * (depth - len(s)) for s in share]


def _runs(rows: Sequence[Row], budget: int) -> tuple[list[list[Row]], list[int]]:
    """Sorts rows by their tokens and cuts them into runs. Returns (runs, nodes of each run)."""
    order, overlaps = prefix_forest.neighbours([row.token_ids for row in rows])
    ordered = [rows[i] for i in order]
    spans = prefix_forest.cut([len(row.token_ids) for row in ordered], overlaps, budget)
    sizes = [
        sum(len(ordered[i].token_ids) - (overlaps[i] if i > span.start else 0) for i in span)
        for span in spans
    ]
    return [[ordered[i] for i in span] for span in spans], sizes


def _rectangles(rows: Sequence[Row], budget: int) -> tuple[list[list[Row]], list[int]]:
    """Cuts rows into bins of similar length. Returns (bins, each bin's padded area)."""
    bins: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: -len(r.token_ids)):
        # Descending lengths: the first row of a bin is its padded width.
        if bins and (len(bins[-1]) + 1) * len(bins[-1][0].token_ids) <= budget:
            bins[-1].append(row)
        else:
            bins.append([row])
    return bins, [len(rows) * len(rows[0].token_ids) for rows in bins]


def collate(
    rows: Sequence[Row], device: torch.device, *, referenced: bool | None = None
) -> MicroBatch:
    """Makes the tensors of a micro-batch. If `rows` is empty, makes one row of two masked-out
    tokens. `referenced`: whether the rows of the step have log-probabilities of a reference; by
    default, whether one of the given rows does."""
    input_tokens = sum(len(row.token_ids) for row in rows)
    if referenced is None:
        referenced = any(row.reference is not None for row in rows)
    rows = rows or [_nothing()]
    forest = prefix_forest.plant([row.token_ids for row in rows])
    shape = (len(rows), max(len(row.token_ids) for row in rows))
    paths, old = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    advantages, weights = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    mask, fresh = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
    reference = np.full(shape if referenced else (0, 0), np.nan, np.float32)
    homes = np.zeros(len(forest.token_ids), np.int64)
    for i, (row, path) in enumerate(zip(rows, forest.paths, strict=True)):
        if row.mask[0]:
            raise UserError("a row trains its first token, which nothing predicts; mask it out")
        length = len(path)
        paths[i, :length], old[i, :length], mask[i, :length] = path, row.old_logprobs, row.mask
        advantages[i, :length], weights[i, :length] = row.advantages, row.weights
        if referenced and row.reference is not None:
            reference[i, :length] = row.reference
        if row.fresh is not None:
            fresh[i, :length] = row.fresh
        homes[path] = i * shape[1] + np.arange(length)
    rectangles, places = prefix_forest.lay_out(forest.paths, len(forest.token_ids))

    def tensor(values: object, dtype: torch.dtype | None = None) -> Tensor:
        return torch.as_tensor(values, dtype=dtype).to(device)

    return MicroBatch(
        nodes=Nodes(
            token_ids_N=tensor(forest.token_ids),
            positions_N=tensor(forest.positions),
            parents_N=tensor(forest.parents),
            homes_N=tensor(homes),
            paths_BT=tensor(paths),
            rectangles=tuple(tensor(each) for each in rectangles),
            places_N=tensor(places),
        ),
        mask_BT=tensor(mask),
        old_logprobs_BT=tensor(old),
        advantages_BT=tensor(advantages),
        weights_BT=tensor(weights),
        reference_BT=tensor(reference) if referenced else None,
        losses=tuple(row.loss for row in rows),
        distilled_B=tensor([row.distilled for row in rows], torch.bool),
        temperatures_B=tensor([row.temperature for row in rows], torch.float32),
        retries=tuple(row.retry for row in rows),
        reused_B=tensor([row.reused for row in rows], torch.bool),
        fresh_BT=tensor(fresh),
        input_tokens=input_tokens,
        unmeasured_B=tensor([not row.measured for row in rows], torch.bool),
    )


def _nothing() -> Row:
    """Makes a row without trained tokens."""
    zeros = np.zeros(2, np.float32)
    return Row(np.zeros(2, np.int32), np.zeros(2, np.bool_), zeros, zeros, np.zeros(2))


def packing_shares(sums: dict[str, float]) -> dict[str, float]:
    """Computes two shares. `padding`: the share of computed positions that hold no token.
    `shared_tokens`: the share of the rows' tokens that are reused from another row."""
    held = sums["sum_held_tokens"]
    return {
        "padding": 1.0 - held / max(sums["sum_computed_tokens"], 1.0),
        "shared_tokens": 1.0 - held / max(sums["sum_input_tokens"], 1.0),
    }


def packing_sums(micro: MicroBatch, pack: Pack) -> dict[str, float]:
    """Counts the rows' tokens, the computed positions, and the positions that hold a token."""
    if not micro.input_tokens:
        return dict.fromkeys(("sum_input_tokens", "sum_computed_tokens", "sum_held_tokens"), 0.0)
    nodes, padded = micro.nodes.token_ids_N.numel(), micro.mask_BT.numel()
    computed, held = (padded, micro.input_tokens) if pack == "rows" else (nodes, nodes)
    return {
        "sum_input_tokens": float(micro.input_tokens),
        "sum_computed_tokens": float(computed),
        "sum_held_tokens": float(held),
    }
