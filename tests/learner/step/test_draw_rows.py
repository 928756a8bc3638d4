"""The rows of a draw: what is trained, how much it weighs, and what is told of it."""

from collections.abc import Sequence
from dataclasses import replace as replace_row
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from buffer.storage.stored_rows import TrainedAttempt
from learner.step.draw_rows import DrawRows, make_rows, trained_attempts, weight_metrics
from r3l.algorithms import rows as core_rows
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch, Source
from r3l.algorithms.credit import by_step
from r3l.algorithms.published.grpo import GRPO
from r3l.algorithms.published.r3 import R3
from r3l.algorithms.queries import Query
from r3l.algorithms.r3l import R3L
from r3l.algorithms.rows import Row
from r3l.errors import UserError
from r3l.records import Extra, Recalled, Segment, Trajectory, done
from r3l.training.micro_batch import collate
from tests.r3l.training.fakes import (
    advantages_of,
    aux_rows,
    explore_group,
    group_of,
    made_row,
    policy_rows,
    rows_of,
    trajectory,
    weights_of,
)


def test_rows_of_a_group_carry_pivot_masks_and_amplified_advantages() -> None:
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None), pivot=2)
    rows = rows_of([group], R3L(group_size=4, sft_share=None))
    policy, aux = policy_rows(rows), aux_rows(rows)
    assert advantages_of(policy) == pytest.approx([0.0 - 2 / 3, 3.0, 3.0])
    first, success, retry = policy
    start = group.trajectories[0].step_spans[2, 0]
    assert not first.mask[:start].any() and not retry.mask[:start].any()
    assert success.mask.sum() == group.trajectories[1].response_mask.sum()
    masses = [row.weights[row.mask].sum() for row in policy]
    assert masses == pytest.approx([1 / 3] * 3)
    assert len(aux) == 2 and sum(r.weights[r.mask].sum() for r in aux) == pytest.approx(1)


def test_rows_have_the_temperature_of_their_attempt_and_auxiliary_rows_have_1() -> None:
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None))
    heats = iter([0.7, 0.0, 1.3])  # greedy: log-probabilities are stored at 1
    results = [
        replace(r, trajectory=replace(r.trajectory, temperature=next(heats))) if r.trajectory else r
        for r in group.results
    ]
    rows = rows_of([replace(group, results=tuple(results))], R3L(group_size=4, sft_share=None))
    assert [row.temperature for row in rows] == [0.7, 1.0, 1.3, 1.0, 1.0]
    assert len(policy_rows(rows)) == 3 and len(aux_rows(rows)) == 2


def test_the_weight_of_a_token_follows_normalize_and_the_pool_of_auxiliary_samples() -> None:
    """Two attempts of 4 steps of 4 tokens; a retry of the last 2 steps, verified: its reflection of
    16 tokens and its own 8 are learned."""
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None), pivot=2)

    def shares(**settings: Any) -> list[float]:
        return weights_of(rows_of([group], R3L(group_size=4, sft_share=None, **settings)))

    assert shares() == pytest.approx([1 / 24, 1 / 48, 1 / 24, 1 / 24, 1 / 24])
    assert shares(normalize="attempt") == pytest.approx([1 / 48] * 3 + [1 / 24] * 2)
    assert shares(normalize="token") == pytest.approx([1 / 32] * 3 + [1 / 24] * 2)
    assert shares(normalize="sum") == pytest.approx([1 / 3] * 3 + [1 / 24] * 2)
    shared = {"sft_pool": "shared"}
    assert shares(**shared) == pytest.approx([1 / 40, 1 / 80, 1 / 40, 1 / 80, 1 / 40])
    assert shares(**shared, normalize="token") == pytest.approx([1 / 56] * 5)
    rows = rows_of(
        [group, explore_group(group_id="g2", base_rewards=(0.0,), retry_rewards=())],
        R3L(group_size=4, sft_share=None, normalize="group", amplify=False),
    )
    # half of the weight for each group; the second one's only attempt has no advantage
    assert weights_of(rows) == pytest.approx([1 / 96] * 3 + [1 / 24] * 2)


def test_the_largest_weight_of_a_token_and_the_share_of_auxiliary_samples_are_measured() -> None:
    group = explore_group(base_rewards=(0.0, 1.0), retry_rewards=(1.0, None), pivot=2)

    def measured(**settings: Any) -> list[float]:
        algorithm = R3L(group_size=4, sft_share=None, **settings)
        metrics = weight_metrics(rows_of([group], algorithm), algorithm.sft_weight)
        assert metrics["group/aux_samples"] == 2.0
        return [metrics["learner/aux_share"], metrics["learner/largest_token_weight"]]

    # 8 tokens of weight 1/24, 16 of 1/48, 8 of 1/24: in the mean 1/32
    assert measured() == pytest.approx([1 / 2, 32 / 24])
    assert measured(sft_weight=3.0) == pytest.approx([3 / 4, 32 / 24])
    assert measured(sft_pool="shared", normalize="token") == pytest.approx([3 / 7, 1.0])
    assert weight_metrics([], 1.0) == {"group/aux_samples": 0.0}


def test_every_row_that_is_not_the_policys_is_an_auxiliary_sample() -> None:
    """Policy: 4 tokens of weight 1. λ = 3 weighs only the loss `sft`."""
    ids, mask = np.arange(5, dtype=np.int32), np.array([False, True, True, True, True])
    made = [core_rows.supervised(ids, mask, 0.5, loss) for loss in ("policy", "sft", "advised")]
    made[0] = replace_row(made[0], weights=np.ones(5))
    metrics = weight_metrics(made, 3.0)
    assert metrics["group/aux_samples"] == 2.0
    assert metrics["learner/aux_share"] == pytest.approx((3 * 2 + 2) / (4 + 3 * 2 + 2))
    assert metrics["learner/largest_token_weight"] == 1.0


def test_auxiliary_samples_have_a_share_of_the_tokens_and_the_same_ones_each_time() -> None:
    groups = [
        explore_group((0.0, 0.0), (1.0, 1.0), pivot=1, group_id=f"g{i}", seed=i) for i in range(3)
    ]

    def samples(share: float | None) -> list[bytes]:
        aux = aux_rows(rows_of(groups, R3L(group_size=4, sft_share=share)))
        assert sum(row.weights[row.mask].sum() for row in aux) == pytest.approx(1.0)
        return [row.token_ids.tobytes() for row in aux]

    # 12 attempts and 12 samples of equal length
    assert [len(samples(share)) for share in (None, 9.0, 0.5, 0.26, 0.17)] == [12, 12, 6, 2, 2]
    assert samples(0.5) == samples(0.5)
    assert set(samples(0.26)) < set(samples(0.5)) < set(samples(None))


def test_a_group_without_contrast_costs_no_forward_pass_but_counts_in_the_mean() -> None:
    flat = explore_group(base_rewards=(0.0, 0.0), retry_rewards=(0.0, 0.0), pivot=1)
    other = explore_group((0.0, 1.0), (None, None), group_id="g1")
    algorithm = R3L(group_size=4)
    assert rows_of([flat], algorithm) == []
    rows = rows_of([flat, other], algorithm)
    assert [row.weights[row.mask].sum() for row in rows] == pytest.approx([1 / 6] * 2)


def test_the_rows_of_a_step_do_not_depend_on_the_order_of_its_groups() -> None:
    groups = [explore_group((0.0, 1.0), (1.0, 0.5), group_id=f"g{i}", seed=i) for i in range(3)]
    one, other = (rows_of(g, R3L(group_size=4)) for g in (groups, groups[::-1]))
    terms = [sorted(zip(advantages_of(r), weights_of(r), strict=True)) for r in (one, other)]
    assert terms[0] == terms[1] and len(one) == len(other) > 0


def recalled(slot: int, reward: float, into: str = "g0") -> Recalled:
    return Recalled(into, "g9", trajectory(slot, reward, seed=9))


def test_recalled_attempts_join_the_group_they_were_recalled_into() -> None:
    groups = [explore_group((0.0, 0.0), (), group_id=name, seed=i) for i, name in enumerate("ab")]
    algorithm = R3(kl_coef=0.0)
    assert rows_of(groups, algorithm) == []
    rows = rows_of(groups, algorithm, recalled=[recalled(3, 1.0, "b")])
    assert [row.reused for row in rows] == [False, False, True]
    # mean 1/3, std √2/3, α = 2
    assert advantages_of(rows) == pytest.approx([-0.35355, -0.35355, 0.70711], abs=1e-5)
    assert [row.weights[row.mask].sum() for row in rows] == pytest.approx([1 / 5] * 3)


def test_only_tokens_that_the_learners_weights_sampled_without_guidance_are_fresh() -> None:
    group = explore_group((0.0, 1.0), (1.0, None), pivot=2)
    algorithm = R3L(group_size=4)

    def at(one: Trajectory) -> Trajectory:
        oldest, newest = np.array([[6, 7, 7, 7], [6, 7, 7, 8]], np.int32)
        return replace(one, step_versions=oldest, step_newest_versions=newest)

    results = tuple(
        replace(result, trajectory=at(result.trajectory)) if result.trajectory else result
        for result in group.results
    )
    group = replace(group, results=results)
    rows = policy_rows(rows_of([group], algorithm, version=7))
    assert {row.distilled for row in rows} == {True, False}
    micro = collate(rows, torch.device("cpu"))
    spans = group.trajectories[0].step_spans[1:3]
    for row, fresh in zip(rows, micro.fresh_BT, strict=True):
        expected = [] if row.distilled else [t for start, end in spans for t in range(start, end)]
        assert fresh.nonzero().flatten().tolist() == expected
    assert not collate(rows_of([group], algorithm), torch.device("cpu")).fresh_BT.any()


class RewardsToGo(Algorithm):
    """An advantage for every step: what was still to be earned from it on."""

    def rows(self, batch: Batch) -> list[Row]:
        by_token = [
            [
                by_step(np.cumsum(one.extra.step_rewards[::-1])[::-1], one)
                for one in batch.attempts(group)
            ]
            for group in batch.groups
        ]
        found, masks = self.advantages(batch), self.credit_masks(batch)
        counted = core_rows.policy(batch, found, masks, self.normalize, by_token)
        return core_rows.with_gradient(core_rows.weigh(counted, self.normalize))


def earning(slot: int, reward: float, steps: Sequence[float]) -> Trajectory:
    extra = Extra(step_rewards=np.array(steps, np.float32))
    return trajectory(slot, reward, steps=len(steps), extra=extra)


def test_an_algorithm_may_give_every_token_an_advantage_of_its_own() -> None:
    one, other = earning(0, 1.0, [0.75, 0.25]), earning(1, 0.0, [0, 0, 0])
    [row] = rows_of([group_of(done(one), done(other))], RewardsToGo())  # the other earned nothing
    (a, b), (c, d) = one.step_spans.tolist()
    assert len(row.advantages) == d
    assert set(row.advantages[a:b]) == {1.0} and set(row.advantages[c:d]) == {0.25}
    # the mean over its tokens, and over two attempts
    assert weights_of([row]) == pytest.approx([1 / 8 / 2])
    [found] = trained_attempts([row])
    assert (found.advantage, found.first_step, found.by_token) == (0.625, 0, True)


def test_what_trained_on_an_attempt_is_named_with_its_place_in_the_store() -> None:
    group = explore_group((0.0, 1.0), (1.0, None), pivot=2)
    joins = Recalled(group.group_id, "g9", trajectory(5, 1.0, steps=2, seed=3))
    rows = rows_of([group], R3L(group_size=4), weights=[0.5], recalled=[joins])
    found = {(one.group_id, one.slot): one for one in trained_attempts(rows)}
    policy = policy_rows(rows)
    assert len(found) == len(policy) and ("g9", 5) in found
    for row, advantage, weight in zip(
        policy, advantages_of(policy), weights_of(policy), strict=True
    ):
        assert row.source is not None
        into, stored, attempt = row.source
        one = found[stored, attempt.slot]
        assert (one.into, one.advantage, one.by_token) == (into, pytest.approx(advantage), False)
        assert one.weight == pytest.approx(weight)
        mask = attempt.response_mask.copy()
        mask[: attempt.step_spans[one.first_step, 0]] = False
        assert np.array_equal(np.flatnonzero(mask), np.flatnonzero(row.mask))
    assert [found["g0", slot].first_step for slot in (0, 2)] == [2, 2]  # from the pivot on
    assert {one.reliance for one in found.values()} == {None}
    relied = trained_attempts(rows, {("g0", "g0", 2): -0.5, ("g0", "g9", 2): 0.1})
    assert [one.slot for one in relied if one.reliance == -0.5] == [2]
    assert sum(one.reliance is not None for one in relied) == 1


def test_the_first_trained_turn_is_told_also_if_turns_follow_each_other_at_once() -> None:
    spans = np.array([[12, 16], [16, 20]], np.int32)
    one = replace(trajectory(0, 1.0, steps=2), step_spans=spans)
    row = made_row(one.token_ids, one.responses_from(1), source=Source("g", "g", one))
    assert [found.first_step for found in trained_attempts([row])] == [1]


def test_the_conversations_of_an_attempt_share_its_advantage_and_weigh_once() -> None:
    """Two attempts of 12 trained tokens: one in a single sequence, one in two of which the second
    repeats the first step of the first. Every trained token weighs the same."""
    whole, forked = trajectory(0, 1.0, steps=3), trajectory(1, 0.0, steps=2)
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
    rows = rows_of([group_of(done(whole), done(forked))], GRPO(group_size=2, kl_coef=0.0))
    assert [int(row.mask.sum()) for row in rows] == [12, 8, 4]
    own, one, two = advantages_of(rows)
    assert one == two == -own and len(set(weights_of(rows))) == 1
    assert rows[2].source is None and len(trained_attempts(rows)) == 2


def chat() -> Any:
    """Stands for what makes the chat format."""


class Told:
    """A trainer that answers every query with its key."""

    rank = 0

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def answer(self, batch: Batch, queries: Sequence[Query]) -> Batch:
        return batch.with_answers({query.key: query.key for query in queries})


class Asking(Algorithm):
    """Asks one question, and needs its answer for its rows."""

    def queries(self, batch: Batch) -> list[Query]:
        ids = np.arange(3, dtype=np.int32)
        return [Query("why", ids, ids > 0)]

    def rows(self, batch: Batch) -> list[Row]:
        return [made_row(range(3, 6), reused=batch.answers["why"] == "why")]


def made(algorithm: Algorithm, batch: Batch, vocabulary: int = 200) -> DrawRows[Batch]:
    trainer: Any = Told(vocabulary)
    return make_rows(trainer, algorithm, batch, chat)


def test_rows_are_made_with_the_answers_of_the_algorithms_queries() -> None:
    found = made(Asking(), Batch([explore_group((0.0, 1.0), ())]))
    assert found.rows[0].reused and found.batch.answers == {"why": "why"}
    assert found.batch.chat is chat
    assert found.metrics["learner/queries_s"] >= 0 <= found.metrics["learner/pack_s"]
    silent = made(GRPO(kl_coef=0), Batch([explore_group((0.0, 1.0), ())]))
    assert "learner/queries_s" not in silent.metrics


def test_tokens_outside_the_vocabulary_are_refused_with_their_group() -> None:
    group = explore_group((0.0, 1.0), (1.0, None), group_id="g7", vocab=200)
    plain = GRPO(kl_coef=0)
    made(plain, Batch([group]))
    attempts = [*group.trajectories, *group.reflections]
    highest = max(int(one.token_ids.max()) for one in attempts)
    with pytest.raises(UserError, match=f"group g7: holds token {highest}, .* {highest - 1};"):
        made(plain, Batch([group]), highest)
    with pytest.raises(UserError, match="group g9: holds token"):
        made(plain, Batch([], recalled=[recalled(0, 1.0)]), 3)


def test_rows_that_are_none_are_refused() -> None:
    class Wrong(Algorithm):
        def rows(self, batch: Batch) -> list[Row]:
            return [1]  # type: ignore[list-item]

    with pytest.raises(UserError, match=r"returned \[1\]; it must return a list of .*Row"):
        made(Wrong(), Batch([]))


def test_a_row_that_trains_its_first_token_is_refused_before_any_rank_has_it() -> None:
    class Wrong(Algorithm):
        def rows(self, batch: Batch) -> list[Row]:
            row = made_row(range(3, 6))
            return [made_row([]), replace_row(row, mask=~row.mask | True)]

    with pytest.raises(UserError, match=r"returned a row that trains its first token, .* mask it"):
        made(Wrong(), Batch([]))


def test_the_ledger_holds_what_trained_attempts_tells() -> None:
    rows = rows_of([explore_group((0.0, 1.0), ())], GRPO(kl_coef=0))
    assert all(isinstance(one, TrainedAttempt) for one in trained_attempts(rows))
