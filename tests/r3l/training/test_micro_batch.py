"""Rows and micro-batches: what is trained, and that the cut does not matter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from learner.step.batch import (
    Row,
    check_tokens,
    collate,
    micro_batches,
    rows_of,
    trained_attempts,
    weight_metrics,
)
from r3l.algorithms import losses
from r3l.algorithms.advantages import centered
from r3l.algorithms.algorithm import Algorithm, Exploration, Float64
from r3l.algorithms.credit import by_step
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.published.grpo import GRPOConfig
from r3l.algorithms.published.r3 import R3Config
from r3l.algorithms.r3l import R3LConfig
from r3l.errors import UserError
from r3l.records import Extra, Group, GroupPlan, Recalled, Segment, SlotResult, Task, Trajectory
from tests.r3l.training.fakes import explore_group, trajectory


def row(length: int, first: int = 0) -> Row:
    ids = np.arange(first, first + length, dtype=np.int32)
    return Row(ids, np.ones(length, bool), np.zeros(length, np.float32), 1.0)


@given(
    st.lists(st.integers(2, 300), max_size=60),
    st.integers(64, 600),
    st.integers(1, 8),
    st.booleans(),
)
def test_every_row_is_in_one_micro_batch_within_the_budget_and_ranks_have_equally_many(
    lengths: list[int], budget: int, ranks: int, shared: bool
) -> None:
    share = micro_batches([row(n) for n in lengths], budget, ranks, shared=shared)
    assert len({len(mine) for mine in share}) == 1 and len(share) == ranks
    bins = [one for mine in share for one in mine]
    assert sorted(len(r.token_ids) for b in bins for r in b) == sorted(lengths)
    for one in bins:
        width = max((len(r.token_ids) for r in one), default=0)
        computed = width if shared else len(one) * width  # these rows are prefixes of the longest
        assert computed <= budget or len(one) <= 1


@pytest.mark.parametrize("shared", [False, True])
def test_padding_stays_under_a_tenth_and_ranks_differ_little_on_mixed_lengths(
    shared: bool,
) -> None:
    rng = np.random.default_rng(0)
    rows = [row(int(n), seed) for seed, n in enumerate(rng.integers(100, 2000, 128))]
    share = micro_batches(rows, 8192, 4, shared=shared)
    sizes = [
        [
            sum(len(r.token_ids) for r in one)
            if shared
            else len(one) * max(len(r.token_ids) for r in one)
            for one in mine
            if one
        ]
        for mine in share
    ]
    held = sum(len(r.token_ids) for r in rows)
    assert 1 - held / sum(map(sum, sizes)) <= 0.1
    assert max(map(sum, sizes)) <= 1.1 * sum(map(sum, sizes)) / len(sizes)


def test_a_group_too_big_for_the_budget_is_cut_where_its_rows_share_least() -> None:
    trunks = [np.arange(100) * 2, np.arange(100) * 2 + 1]
    rows = [
        Row(np.append(trunk, [k] * 10).astype(np.int32), np.ones(110, bool), np.zeros(110, "f4"))
        for k in range(5)
        for trunk in trunks
    ]
    [mine] = micro_batches(rows, 200, 1, shared=True)
    for part in mine:
        assert len(part) == 5 and len({int(r.token_ids[1]) for r in part}) == 1


def test_rows_of_a_group_carry_pivot_masks_and_amplified_advantages() -> None:
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None), pivot=2)
    rows = rows_of([group], R3LConfig(group_size=4, sft_share=None).build())
    policy = [r for r in rows if not r.aux]
    assert [r.advantage for r in policy] == [0.0 - 2 / 3, 3.0, 3.0]
    first, success, retry = policy
    start = group.trajectories[0].step_spans[2, 0]
    assert not first.mask[:start].any() and not retry.mask[:start].any()
    assert success.mask.sum() == group.trajectories[1].response_mask.sum()
    assert [r.weight * r.mask.sum() for r in policy] == pytest.approx([1 / 3] * 3)
    aux = [r for r in rows if r.aux]
    assert len(aux) == 2 and sum(r.weight * r.mask.sum() for r in aux) == pytest.approx(1)


def test_rows_have_the_temperature_of_their_attempt_and_auxiliary_rows_have_1() -> None:
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None))
    heats = iter([0.7, 0.0, 1.3])  # greedy: log-probabilities are stored at 1
    results = [
        replace(r, trajectory=replace(r.trajectory, temperature=next(heats))) if r.trajectory else r
        for r in group.results
    ]
    rows = rows_of(
        [replace(group, results=tuple(results))], R3LConfig(group_size=4, sft_share=None).build()
    )
    assert [r.temperature for r in rows] == [0.7, 1.0, 1.3, 1.0, 1.0]
    assert [r.aux for r in rows] == [False] * 3 + [True] * 2
    assert collate(rows, torch.device("cpu")).temperatures_B.tolist() == pytest.approx(
        [0.7, 1.0, 1.3, 1.0, 1.0]
    )


def test_the_weight_of_a_token_follows_normalize_and_the_pool_of_auxiliary_samples() -> None:
    """Two attempts of 4 steps of 4 tokens; a retry of the last 2 steps, verified: 2 samples."""
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None), pivot=2)

    def shares(**settings: Any) -> list[float]:
        rows = rows_of([group], R3LConfig(group_size=4, sft_share=None, **settings).build())
        return [row.weight for row in rows]

    assert shares() == pytest.approx([1 / 24, 1 / 48, 1 / 24, 1 / 32, 1 / 32])
    assert shares(normalize="attempt") == pytest.approx([1 / 48] * 3 + [1 / 32] * 2)
    assert shares(normalize="token") == pytest.approx([1 / 32] * 5)
    assert shares(normalize="sum") == pytest.approx([1 / 3] * 3 + [1 / 32] * 2)
    shared = {"sft_pool": "shared"}
    assert shares(**shared) == pytest.approx([1 / 40, 1 / 80, 1 / 40, 1 / 80, 1 / 80])
    assert shares(**shared, normalize="token") == pytest.approx([1 / 64] * 5)
    rows = rows_of(
        [group, explore_group(group_id="g2", base_rewards=(0.0,), retry_rewards=())],
        R3LConfig(group_size=4, sft_share=None, normalize="group", amplify=False).build(),
    )
    # half of the weight for each group; the second one's only attempt has no advantage
    assert [row.weight for row in rows] == pytest.approx([1 / 96] * 3 + [1 / 32] * 2)


def test_the_largest_weight_of_a_token_and_the_share_of_auxiliary_samples_are_measured() -> None:
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None), pivot=2)

    def measured(**settings: Any) -> list[float]:
        algorithm = R3LConfig(group_size=4, sft_share=None, **settings).build()
        metrics = weight_metrics(rows_of([group], algorithm), algorithm.sft_weight)
        return [metrics["learner/aux_share"], metrics["learner/largest_token_weight"]]

    # 8 tokens of weight 1/24, 16 of 1/48, 8 of 1/24: in the mean 1/32
    assert measured() == pytest.approx([1 / 2, 32 / 24])
    assert measured(sft_weight=3.0) == pytest.approx([3 / 4, 32 / 24])
    assert measured(sft_pool="shared", normalize="token") == pytest.approx([1 / 2, 1.0])
    assert weight_metrics([], 1.0) == {}


def test_auxiliary_samples_have_a_share_of_the_tokens_and_the_same_ones_each_time() -> None:
    groups = [
        explore_group((0.0, 0.0), (1.0, 1.0), pivot=1, group_id=f"g{i}", seed=i) for i in range(3)
    ]

    def samples(share: float | None) -> list[bytes]:
        rows = rows_of(groups, R3LConfig(group_size=4, sft_share=share).build())
        aux = [row for row in rows if row.aux]
        assert sum(row.weight * row.mask.sum() for row in aux) == pytest.approx(1.0)
        return [row.token_ids.tobytes() for row in aux]

    # 12 attempts and 12 samples of equal length
    assert [len(samples(share)) for share in (None, 9.0, 0.5, 0.26, 0.1)] == [12, 12, 6, 3, 1]
    assert samples(0.5) == samples(0.5)
    assert set(samples(0.26)) < set(samples(0.5)) < set(samples(None))


def test_a_group_without_contrast_costs_no_forward_pass_but_counts_in_the_mean() -> None:
    flat = explore_group(base_rewards=(0.0, 0.0), retry_rewards=(0.0, 0.0), pivot=1)
    other = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(None, None))
    algorithm = R3LConfig(group_size=4).build()
    assert rows_of([flat], algorithm) == []
    rows = rows_of([flat, other], algorithm)
    assert [r.weight * r.mask.sum() for r in rows] == pytest.approx([1 / 6] * 2)


def test_padding_is_masked_out_everywhere() -> None:
    micro = collate([row(3), row(5, 7)], torch.device("cpu"))
    assert micro.mask_BT.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert micro.nodes.paths_BT.tolist() == [[0, 1, 2, 0, 0], [3, 4, 5, 6, 7]]
    assert micro.input_tokens == 8
    empty = collate([], torch.device("cpu"))
    assert empty.mask_BT.sum() == 0 and empty.input_tokens == 0


def test_padding_is_at_most_a_tenth_on_mixed_lengths_and_ranks_are_balanced() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6.0, 0.7, 600), 16, 4000).astype(int)
    rows = [row(int(n)) for n in lengths]
    for ranks in (1, 2, 8):
        share = micro_batches(rows, 8192, ranks, shared=False)
        assert len({len(mine) for mine in share}) == 1
        sizes = [[len(b) * max(len(r.token_ids) for r in b) for b in mine if b] for mine in share]
        area = sum(map(sum, sizes))
        assert 1 - lengths.sum() / area <= 0.1
        assert max(map(sum, sizes)) <= 1.1 * area / ranks
        assert all(mine == sorted(mine, reverse=True) for mine in sizes)


def test_tokens_outside_the_vocabulary_are_refused_with_their_group() -> None:
    group = explore_group((0.0, 1.0), (1.0, None), group_id="g7", vocab=200)
    check_tokens([group], 200)
    highest = max(int(t.token_ids.max()) for t in group.trajectories)
    with pytest.raises(UserError, match=f"g7.*token {highest}.*ends at {highest - 1}"):
        check_tokens([group], highest)


def recalled(slot: int, reward: float, into: str = "g0") -> Recalled:
    return Recalled(into, "g9", trajectory("base", slot, reward, seed=9))


def test_recalled_attempts_join_the_group_they_were_recalled_into() -> None:
    groups = [explore_group((0.0, 0.0), (), group_id=name, seed=i) for i, name in enumerate("ab")]
    algorithm = R3Config(kl_coef=0.0).build()
    assert rows_of(groups, algorithm) == []
    rows = rows_of(groups, algorithm, (), [recalled(3, 1.0, "b")])
    assert [r.reused for r in rows] == [False, False, True]
    # mean 1/3, std √2/3, α = 2
    assert [r.advantage for r in rows] == pytest.approx([-0.35355, -0.35355, 0.70711], abs=1e-5)
    assert [r.weight * r.mask.sum() for r in rows] == pytest.approx([1 / 5] * 3)


def test_a_recalled_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match="group g9: holds token"):
        check_tokens([], 3, [recalled(0, 1.0)])


def test_only_tokens_that_the_learners_weights_sampled_without_guidance_are_fresh() -> None:
    group = explore_group((0.0, 1.0), (1.0, None), pivot=2)
    algorithm = R3LConfig(group_size=4).build()

    def at(one: Trajectory) -> Trajectory:
        oldest, newest = np.array([[6, 7, 7, 7], [6, 7, 7, 8]], np.int32)
        return replace(one, step_versions=oldest, step_newest_versions=newest)

    results = tuple(
        replace(result, trajectory=at(result.trajectory)) if result.trajectory else result
        for result in group.results
    )
    group = replace(group, results=results)
    rows = [row for row in rows_of([group], algorithm, version=7) if not row.aux]
    assert {row.distilled for row in rows} == {True, False}
    micro = collate(rows, torch.device("cpu"))
    spans = group.trajectories[0].step_spans[1:3]
    for row, fresh in zip(rows, micro.fresh_BT, strict=True):
        expected = [] if row.distilled else [t for start, end in spans for t in range(start, end)]
        assert fresh.nonzero().flatten().tolist() == expected
    assert not collate(rows_of([group], algorithm), torch.device("cpu")).fresh_BT.any()


def rewards_to_go(advantages: Float64, trajectories: Sequence[Trajectory]) -> list[Float64]:
    """An advantage for every step: what was still to be earned from it on."""
    steps = [np.cumsum(one.extra.step_rewards[::-1])[::-1] for one in trajectories]
    return [by_step(values, one) for values, one in zip(steps, trajectories, strict=True)]


def test_an_algorithm_may_give_every_token_an_advantage_of_its_own() -> None:
    one = trajectory(
        "base", 0, 1.0, steps=2, extra=Extra(step_rewards=np.array([0.75, 0.25], np.float32))
    )
    other = trajectory("base", 1, 0.0, steps=3, extra=Extra(step_rewards=np.zeros(3, np.float32)))
    results = tuple(SlotResult("base", t.slot, "done", trajectory=t) for t in (one, other))
    group = Group("g0", Task("t/0", "t", 0), GroupPlan(2), "complete", results)
    algorithm = Algorithm(
        "mine", Exploration(2), centered, losses.policy_gradient, token_advantages=rewards_to_go
    )
    [row] = rows_of([group], algorithm)  # the other earned nothing in any step
    (a, b), (c, d) = one.step_spans.tolist()
    assert row.token_advantages is not None and len(row.token_advantages) == d
    assert set(row.token_advantages[a:b]) == {1.0} and set(row.token_advantages[c:d]) == {0.25}
    micro = collate([row], torch.device("cpu"))
    assert micro.advantages_BT is not None
    logprobs = torch.full(micro.mask_BT.shape, -2.0)
    batch = TokenBatch(
        logprobs,
        micro.old_logprobs_BT,
        micro.mask_BT,
        micro.advantages_B,
        micro.weights_B,
        micro.distilled_B,
        advantages_BT=micro.advantages_BT,
    )
    loss, _ = algorithm.loss(batch)
    # −Â log π is 2 and 0.5 on four tokens each; the mean over them, and over two attempts
    assert float(loss) == pytest.approx((2.0 + 0.5) / 2 / 2)


def test_what_trained_on_an_attempt_is_named_with_its_place_in_the_store() -> None:
    group = explore_group((0.0, 1.0), (1.0, None), pivot=2)
    joins = Recalled(group.group_id, "g9", trajectory("base", 5, 1.0, steps=2, seed=3))
    rows = rows_of([group], R3LConfig(group_size=4).build(), [0.5], [joins])
    found = {(one.group_id, one.role, one.slot): one for one in trained_attempts(rows)}
    policy = [row for row in rows if not row.aux]
    assert len(found) == len(policy) and ("g9", "base", 5) in found
    for row in policy:
        assert row.source is not None
        into, stored, attempt = row.source
        one = found[stored, attempt.role, attempt.slot]
        assert (one.into, one.advantage, one.weight) == (into, row.advantage, row.weight)
        mask = attempt.response_mask.copy()
        mask[: attempt.step_spans[one.first_step, 0]] = False
        assert np.array_equal(np.flatnonzero(mask), np.flatnonzero(row.mask))
    steps = [one.first_step for (_, role, slot), one in found.items() if slot == 0]
    assert steps == [2, 2]  # a retry and its base, from the pivot on


def test_of_advantages_of_single_tokens_the_mean_is_named() -> None:
    one = trajectory(
        "base", 0, 1.0, steps=2, extra=Extra(step_rewards=np.array([0.75, 0.25], np.float32))
    )
    group = Group(
        "g0",
        Task("t/0", "t", 0),
        GroupPlan(1),
        "complete",
        (SlotResult("base", 0, "done", trajectory=one),),
    )
    algorithm = Algorithm(
        "mine", Exploration(1), centered, losses.policy_gradient, token_advantages=rewards_to_go
    )
    [found] = trained_attempts(rows_of([group], algorithm))
    assert (found.advantage, found.first_step, found.by_token) == (0.625, 0, True)


def test_a_value_for_every_step_is_one_for_each_of_its_tokens() -> None:
    one = trajectory("base", 0, 1.0, steps=2)
    (a, b), (c, d) = one.step_spans.tolist()
    got = by_step([3.0, -1.0], one)
    assert set(got[a:b]) == {3.0} and set(got[c:d]) == {-1.0} and not got[~one.response_mask].any()
    with pytest.raises(ValueError, match=r"must be \[2\]"):
        by_step([1.0], one)


def test_the_conversations_of_an_attempt_share_its_advantage_and_weigh_once() -> None:
    """Two attempts of 12 trained tokens: one in a single sequence, one in two of which the second
    repeats the first step of the first. Every trained token weighs the same."""
    whole, forked = trajectory("base", 0, 1.0, steps=3), trajectory("base", 1, 0.0, steps=2)
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
    results = tuple(SlotResult("base", t.slot, "done", trajectory=t) for t in (whole, forked))
    group = Group("g", Task("t", "e", 0), GroupPlan(2), "complete", results)
    rows = rows_of([group], GRPOConfig(group_size=2).build())
    assert [int(row.mask.sum()) for row in rows] == [12, 8, 4]
    assert rows[1].advantage == rows[2].advantage == -rows[0].advantage
    assert rows[1].weight == rows[2].weight == rows[0].weight
    assert rows[2].source is None and len(trained_attempts(rows)) == 2
