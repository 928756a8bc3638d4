"""Rows: what of an attempt is trained, and how much each token weighs."""

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from r3l.algorithms import rows
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.credit import Normalize, by_step
from r3l.algorithms.rows import Row
from r3l.errors import UserError
from r3l.records import Extra, Origin, Recalled, Segment, Shown
from tests.r3l.algorithms.fakes import batch_of, get, group_of, thought_about


@pytest.fixture
def corrected(make_trajectory):
    """Two attempts of 4 steps of 4 tokens. The first one is retried from step 2 and succeeds."""

    def make(name="g", **more):
        steps = [4] * 4
        attempts = [
            make_trajectory(steps, slot=0, reward=0.0, **more),
            make_trajectory(steps, slot=1, reward=1.0, **more),
            make_trajectory(
                steps, slot=2, of=0, pivot=2, reward=1.0, reflection="reflect-0", **more
            ),
        ]
        return group_of(attempts, [thought_about(0, tokens=range(20), start=4)], name)

    return make


def trained(row):
    """The weight of a row's trained tokens together."""
    return row.weights[row.mask].sum()


def test_rows_of_a_group_have_pivot_masks_and_amplified_advantages(corrected):
    group = corrected()
    made = get(group_size=4, sft_share=None).rows(Batch([group]))
    policy = [row for row in made if row.loss == "policy"]
    for row, value in zip(policy, [0.0 - 2 / 3, 3.0, 3.0], strict=True):
        assert set(row.advantages.tolist()) == {np.float32(value)}
    first, success, retry = policy
    start = group.trajectories[0].step_spans[2, 0]
    assert not first.mask[:start].any() and not retry.mask[:start].any()
    assert success.mask.sum() == group.trajectories[1].response_mask.sum()
    assert [trained(row) for row in policy] == pytest.approx([1 / 3] * 3)
    aux = [row for row in made if row.loss == "sft"]
    assert len(aux) == 2 and sum(map(trained, aux)) == pytest.approx(1)


def test_the_weight_of_a_token_follows_normalize_and_the_pool_of_supervised_samples(corrected):
    """A retry of the last 2 steps, verified: samples of 16 and 8 tokens."""

    def shares(*groups, **settings):
        algorithm = get(group_size=4, sft_share=None, **settings)
        made = algorithm.rows(Batch([corrected(), *groups]))
        assert all(len(set(row.weights.tolist())) == 1 for row in made)
        return [row.weights[0] for row in made]

    assert shares() == pytest.approx([1 / 24, 1 / 48, 1 / 24, 1 / 24, 1 / 24])
    assert shares(normalize="attempt") == pytest.approx([1 / 48] * 3 + [1 / 24] * 2)
    assert shares(normalize="token") == pytest.approx([1 / 32] * 3 + [1 / 24] * 2)
    assert shares(normalize="sum") == pytest.approx([1 / 3] * 3 + [1 / 24] * 2)
    shared = {"sft_pool": "shared"}
    assert shares(**shared) == pytest.approx([1 / 40, 1 / 80, 1 / 40, 1 / 80, 1 / 40])
    assert shares(**shared, normalize="token") == pytest.approx([1 / 56] * 5)
    flat = replace(corrected("flat"), results=corrected().results[:1])
    # half of the weight for each group; the second one's only attempt has no advantage
    got = shares(flat, normalize="group", amplify=False)
    assert got == pytest.approx([1 / 96] * 3 + [1 / 24] * 2)


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    normalize=st.sampled_from(get_args(Normalize)),
    data=st.data(),
)
def test_the_weight_of_a_group_multiplies_its_rows_and_nothing_else(
    make_trajectory, sizes, normalize, data
):
    groups = [
        group_of(
            [make_trajectory([2, 1 + i], slot=i, reward=float(i)) for i in range(n)], name=f"g{k}"
        )
        for k, n in enumerate(sizes)
    ]
    weights = data.draw(st.lists(st.floats(0.1, 3), min_size=len(sizes), max_size=len(sizes)))
    algorithm = get("opmd", normalize=normalize)
    plain, weighed = algorithm.rows(Batch(groups)), algorithm.rows(Batch(groups, weights))
    of = dict(zip((group.group_id for group in groups), weights, strict=True))
    for one, other in zip(plain, weighed, strict=True):
        assert other.weights.tolist() == pytest.approx(one.weights * of[one.source.into])
        assert other.advantages.tolist() == one.advantages.tolist()


def test_a_group_without_contrast_costs_no_row_but_counts_in_the_mean(corrected, make_trajectory):
    flat = group_of([make_trajectory(slot=i) for i in range(4)], name="flat")
    assert get().rows(Batch([flat])) == []
    made = get("opmd").rows(Batch([flat, group_of(corrected().trajectories[:2])]))
    assert [trained(row) for row in made] == pytest.approx([1 / 6] * 2)


def test_a_penalty_needs_the_rows_without_an_advantage_too(make_trajectory):
    batch = batch_of([make_trajectory(slot=i) for i in range(2)])
    assert len(get("grpo").rows(batch)) == 2 and get("grpo", kl_coef=0).rows(batch) == []


def test_an_attempt_without_a_sampled_token_makes_no_row(make_trajectory):
    batch = batch_of([make_trajectory([0], slot=0, reward=1.0), make_trajectory([2], slot=1)])
    [row] = get("grpo").rows(batch)
    assert row.source.attempt.slot == 1 and trained(row) == pytest.approx(1 / 2)


def test_rows_end_with_their_last_trained_token(make_trajectory):
    one = make_trajectory([2, 1], reward=1.0, tokens=range(8))
    longer = replace(one, token_ids=np.arange(12, dtype=np.int32), logprobs=np.zeros(12, "f4"))
    [row] = get("raft").rows(batch_of([longer]))
    assert (
        row.token_ids.tolist() == list(range(8)) and row.mask.tolist() == one.response_mask.tolist()
    )


def test_rows_have_the_temperature_of_their_attempt_and_supervised_rows_have_1(corrected):
    heats = iter([0.7, 0.0, 1.3])  # greedy: log-probabilities are stored at 1
    group = corrected()
    results = [
        replace(r, trajectory=replace(r.trajectory, temperature=next(heats))) for r in group.results
    ]
    made = get(sft_share=None).rows(Batch([replace(group, results=tuple(results))]))
    assert [row.temperature for row in made] == [0.7, 1.0, 1.3, 1.0, 1.0]
    assert [row.loss for row in made] == ["policy"] * 3 + ["sft"] * 2


def test_recalled_attempts_join_the_group_they_were_recalled_into(make_trajectory):
    groups = [
        group_of([make_trajectory(slot=i) for i in range(2)], name=name) for name in ("a", "b")
    ]
    algorithm = get("r3", kl_coef=0.0)
    assert algorithm.rows(Batch(groups)) == []
    joins = Recalled("b", "g9", make_trajectory(slot=3, reward=1.0))
    made = algorithm.rows(Batch(groups, recalled=[joins]))
    assert [row.reused for row in made] == [False, False, True]
    # mean 1/3, std √2/3, α = 2
    want = [-0.35355, -0.35355, 0.70711]
    assert [row.advantages[0] for row in made] == pytest.approx(want, abs=1e-5)
    assert [trained(row) for row in made] == pytest.approx([1 / 5] * 3)
    assert (made[2].source.group_id, made[2].source.into) == ("g9", "b")


def test_all_rows_of_a_replayed_group_are_reused(corrected):
    made = get().rows(Batch([corrected("a"), corrected("b")], replayed={"a"}))
    reused = {row.source.into for row in made if row.reused}
    assert reused == {"a"} and not any(row.reused for row in made if row.loss == "sft")


def test_only_tokens_that_the_learners_weights_sampled_in_the_rows_context_are_fresh(corrected):
    versions = {
        "step_versions": np.array([6, 7, 7, 7], np.int32),
        "step_newest_versions": np.array([6, 7, 7, 8], np.int32),
    }
    group = corrected()
    shown = Shown(np.array([5], np.int32), 0, 3)
    attempts = [replace(one, **versions) for one in group.trajectories]
    attempts[1] = replace(attempts[1], shown=shown)  # which began with a context
    algorithm = get("opmd")
    first, began, retry = algorithm.rows(batch_of(attempts, version=7))
    spans = attempts[0].step_spans[1:3]
    want = [t for start, end in spans for t in range(start, end)]
    assert np.flatnonzero(first.fresh).tolist() == want
    assert began.fresh is None and retry.fresh is None
    assert [row.distilled for row in (first, began, retry)] == [False, True, True]
    assert all(row.fresh is None for row in algorithm.rows(batch_of(attempts)))


def test_an_attempt_that_began_in_a_stored_one_is_trained_from_there_on(make_trajectory):
    begun = make_trajectory([2, 3], slot=0, pivot=1, origin=Origin("g9", 0, 1), reward=1.0)
    row, other = get("grpo").rows(batch_of([begun, make_trajectory(slot=1)]))
    assert row.mask.sum() == 3 and other.mask.sum() == 5 and not row.distilled


class RewardsToGo(Algorithm):
    """An advantage for every step: what was still to be earned from it on."""

    def rows(self, batch):
        values = [
            [
                by_step(np.cumsum(one.extra.step_rewards[::-1])[::-1], one)
                for one in batch.attempts(g)
            ]
            for g in batch.groups
        ]
        counted = rows.policy(
            batch, self.advantages(batch), self.credit_masks(batch), self.normalize, values
        )
        return rows.with_gradient(rows.weigh(counted, self.normalize))


def test_an_algorithm_may_give_every_token_an_advantage_of_its_own(make_trajectory):
    one = make_trajectory(
        [4, 4], reward=1.0, extra=Extra(step_rewards=np.array([0.75, 0.25], np.float32))
    )
    other = make_trajectory([4] * 3, slot=1, extra=Extra(step_rewards=np.zeros(3, np.float32)))
    [row] = RewardsToGo().rows(batch_of([one, other]))  # the other earned nothing in any step
    (a, b), (c, d) = one.step_spans.tolist()
    assert set(row.advantages[a:b]) == {1.0} and set(row.advantages[c:d]) == {0.25}
    assert len(row.advantages) == d and trained(row) == pytest.approx(1 / 2)


def test_the_conversations_of_an_attempt_share_its_advantage_and_weigh_once(make_trajectory):
    """Two attempts of 12 trained tokens: one in a single sequence, one in two of which the second
    repeats the first step of the first. Every trained token weighs the same."""
    whole = make_trajectory([4] * 3, slot=0, reward=1.0)
    forked = make_trajectory([4] * 2, slot=1)
    segment = Segment(
        forked.token_ids,
        forked.logprobs,
        forked.step_spans,
        forked.step_versions,
        forked.step_newest_versions,
        start=1,
    )
    forked = replace(forked, extra=replace(forked.extra, segments=(segment,)))
    assert forked.generated_tokens == 12
    made = get("grpo").rows(batch_of([whole, forked]))
    assert [int(row.mask.sum()) for row in made] == [12, 8, 4]
    values = [row.advantages[0] for row in made]
    assert values[1] == values[2] == -values[0]
    assert made[1].weights[0] == made[2].weights[0] == made[0].weights[0]
    assert made[2].source is None and made[1].source.attempt is forked


def test_a_row_names_the_attempt_that_became_it(corrected, make_trajectory):
    group = corrected()
    joins = Recalled(group.group_id, "g9", make_trajectory([4] * 2, slot=5, reward=1.0))
    made = get().rows(Batch([group], (0.5,), [joins]))
    found = [row.source for row in made if row.loss == "policy"]
    assert [(s.group_id, s.attempt.slot) for s in found] == [
        ("g", 0),
        ("g", 1),
        ("g", 2),
        ("g9", 5),
    ]
    for row in (row for row in made if row.source):
        assert (row.mask <= row.source.attempt.response_mask[: len(row.mask)]).all()


# -- arrays that fit each other --------------------------------------------------------------


def row_of(**changed):
    fields = {
        "token_ids": np.arange(3, dtype=np.int32),
        "mask": np.array([False, True, True]),
        "old_logprobs": np.zeros(3, np.float32),
        "advantages": np.ones(3, np.float32),
        "weights": np.ones(3),
    }
    return Row(**fields | changed)


@pytest.mark.parametrize("name", ["mask", "old_logprobs", "advantages", "weights", "reference"])
@pytest.mark.parametrize("value", [np.ones(2, np.float32), np.ones((3, 1)), [1.0, 1.0, 1.0], 1.0])
def test_a_row_of_other_lengths_than_its_tokens_is_refused(name, value):
    with pytest.raises(
        UserError, match=rf"a row of 3 tokens has {name} of shape .*; give an array"
    ):
        row_of(**{name: value})


def test_a_row_learns_from_trained_tokens_alone():
    assert row_of().learns
    assert not row_of(advantages=np.array([1.0, 0.0, 0.0], np.float32)).learns


def test_scaled_rows_have_other_weights_alone():
    row = row_of().scaled(1 / 3).scaled(0.3)
    assert row.weights.tolist() == [1.0 / 3 * 0.3] * 3 and row.advantages.tolist() == [1.0] * 3


def test_left_out_attempts_are_masked_and_have_advantage_0():
    values = rows.keep_only(np.array([1.0, math.nan, 2.0]), np.array([True, False, True]))
    assert rows.kept(values).tolist() == [True, False, True]
    assert rows.plain(values).tolist() == [1.0, 0.0, 2.0]
    assert rows.kept(np.array([1.0, 0.0])).all() and rows.plain(np.ones(1)).tolist() == [1.0]


def test_supervised_rows_are_trained_as_text():
    ids, mask = np.arange(5, dtype=np.int32), np.array([False, True, False, True, False])
    row = rows.supervised(ids, mask, 0.5)
    assert row.token_ids.tolist() == [0, 1, 2, 3] and row.weights.tolist() == [0.5] * 4
    assert (row.loss, row.temperature, row.advantages.any(), row.source) == (
        "sft",
        1.0,
        False,
        None,
    )
    counted = rows.imitation(group_of([]), ids, mask, loss="world")
    assert (counted.length, counted.group, counted.rows[0].loss) == (2, "g", "world")
    assert rows.count_tokens([counted, counted]) == 8
    empty = rows.supervised(ids, mask & False)
    assert rows.with_gradient([empty, row]) == [row]
