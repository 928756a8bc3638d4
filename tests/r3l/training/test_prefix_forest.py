"""Shared prefixes: the forest is the rows, cut where they share least."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from r3l.training import prefix_forest
from tests.r3l.training.fakes import families


@given(families())
def test_a_forest_holds_every_row_once_per_distinct_prefix(rows):
    forest = prefix_forest.plant(rows)
    prefixes = {tuple(row[: i + 1]) for row in rows for i in range(len(row))}
    assert len(forest.token_ids) == len(prefixes)
    for row, path in zip(rows, forest.paths, strict=True):
        assert forest.token_ids[path].tolist() == row.tolist()
        assert forest.positions[path].tolist() == list(range(len(row)))
        assert forest.parents[path].tolist() == [path[0], *path[:-1]]


@given(families(most=6), st.integers(1, 60))
def test_a_cut_keeps_the_budget_and_no_other_cut_has_fewer_nodes(rows, budget):
    order, overlaps = prefix_forest.neighbours(rows)
    lengths = [len(rows[i]) for i in order]

    def size(span):
        return len(prefix_forest.plant([rows[order[i]] for i in span]).token_ids)

    spans = prefix_forest.cut(lengths, overlaps, budget)
    assert [i for span in spans for i in span] == list(range(len(rows)))
    assert all(size(span) <= budget or len(span) == 1 for span in spans)
    places = range(1, len(rows))
    for count in range(len(rows)):
        for cuts in itertools.combinations(places, count):
            edges = [0, *cuts, len(rows)]
            other = [range(a, b) for a, b in itertools.pairwise(edges)]
            if all(size(span) <= budget or len(span) == 1 for span in other):
                assert sum(map(size, spans)) <= sum(map(size, other))


@given(families())
def test_rectangles_hold_every_row_and_rows_of_similar_length(rows):
    forest = prefix_forest.plant(rows)
    rectangles, places = prefix_forest.lay_out(forest.paths, len(forest.token_ids))
    laid_out = np.concatenate([each.ravel() for each in rectangles])
    assert laid_out[places].tolist() == list(range(len(forest.token_ids)))
    found = sorted(tuple(np.trim_zeros(row[1:], "b")) for each in rectangles for row in each)
    assert found == sorted(tuple(np.trim_zeros(path[1:], "b")) for path in forest.paths)
    for narrower, wider in itertools.pairwise(reversed(rectangles)):
        assert narrower.shape[1] < prefix_forest.SIMILAR * wider.shape[1]
