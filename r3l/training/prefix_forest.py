"""Builds the prefix forest of a micro-batch, in which rows share the nodes of common prefixes.

    rows, sorted by their tokens ─► overlap of neighbours ─► cut within a budget ─► Forest

Sorting puts rows with a common prefix next to each other. So each row adds only the nodes after its
overlap with the previous row.

Axes: N nodes (one for each distinct prefix of the rows), B rows, L tokens of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from r3l.records import Int32

Int64 = npt.NDArray[np.int64]
SIMILAR = 0.75
"""Least length of a row in a rectangle, as a share of the longest row's length."""


@dataclass(frozen=True)
class Forest:
    """A prefix forest, with nodes in depth-first order. `positions` [N]: a node's position in a
    row. `parents` [N]: a root is its own parent. `paths` [L]: the nodes of each row."""

    token_ids: Int64
    positions: Int64
    parents: Int64
    paths: tuple[Int64, ...]


def neighbours(sequences: Sequence[Int32]) -> tuple[list[int], list[int]]:
    """Sorts sequences by their tokens. Returns (order, overlaps). An overlap counts the leading
    tokens that a sequence shares with the previous one."""
    # Big-endian bytes of non-negative numbers sort as the numbers do.
    keys = [np.asarray(ids).astype(">i4").tobytes() for ids in sequences]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    shared = [_overlap(sequences[a], sequences[b]) for a, b in pairwise(order)]
    return order, [0, *shared][: len(order)]


def cut(lengths: Sequence[int], overlaps: Sequence[int], budget: int) -> list[range]:
    """Splits sorted rows into runs of at most `budget` nodes. Minimizes the number
    of nodes first, and the number of runs second. A row longer than the budget is its own run."""
    nodes, runs, first = [0], [0], [0]
    for last in range(len(lengths)):
        best, tail = (0, 0, 0), 0
        for start in range(last, -1, -1):
            size = lengths[start] + tail
            if size > budget and start < last:
                break
            cost = (nodes[start] + size, runs[start] + 1, start)
            best = cost if start == last else min(best, cost)
            tail = size - overlaps[start]
        nodes.append(best[0])
        runs.append(best[1])
        first.append(best[2])
    spans, end = [], len(lengths)
    while end:
        spans.append(range(first[end], end))
        end = first[end]
    return spans[::-1]


def plant(sequences: Sequence[Int32]) -> Forest:
    """Builds the prefix forest of sequences. Each sequence must have at least one token."""
    order, overlaps = neighbours(sequences)
    size = sum(len(sequences[i]) - o for i, o in zip(order, overlaps, strict=True))
    token_ids, positions, parents = (np.zeros(size, np.int64) for _ in range(3))
    paths: list[Int64] = [np.zeros(0, np.int64)] * len(sequences)
    before, count = np.zeros(0, np.int64), 0
    for row, shared in zip(order, overlaps, strict=True):
        fresh = np.arange(count, count + len(sequences[row]) - shared)
        path = np.concatenate([before[:shared], fresh])
        token_ids[fresh] = sequences[row][shared:]
        positions[fresh] = np.arange(shared, len(path))
        parents[fresh] = np.concatenate([path[:1], path])[shared : len(path)]
        paths[row] = before = path
        count += len(fresh)
    return Forest(token_ids, positions, parents, tuple(paths))


def lay_out(paths: Sequence[Int64], nodes: int) -> tuple[list[Int64], Int64]:
    """Puts rows of similar length into rectangles [rows, positions], padded with node 0. Also
    returns each node's index in the flattened, joined rectangles."""
    rectangles: list[list[Int64]] = []
    for path in sorted(paths, key=len, reverse=True):
        if not rectangles or len(path) < SIMILAR * len(rectangles[-1][0]):
            rectangles.append([])
        rectangles[-1].append(path)
    padded, places, begun = list[Int64](), np.zeros(nodes, np.int64), 0
    for rows in rectangles:
        padded.append(np.zeros((len(rows), len(rows[0])), np.int64))
        for i, path in enumerate(rows):
            padded[-1][i, : len(path)] = path
            places[path] = begun + i * len(rows[0]) + np.arange(len(path))
        begun += padded[-1].size
    return padded, places


def _overlap(first: Int32, second: Int32) -> int:
    length = min(len(first), len(second))
    different = np.flatnonzero(first[:length] != second[:length])
    return int(different[0]) if len(different) else length
