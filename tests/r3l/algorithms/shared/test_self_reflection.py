"""Reflecting groups: when one is planned, what it shows, and the context in which it is trained."""

from collections import Counter

import numpy as np
import pytest

import r3l
from r3l.algorithms.facts import LeaseFacts, StoredAttempt
from r3l.algorithms.shared import self_reflection
from r3l.algorithms.shared.self_reflection import REFLECTING, is_reflecting, plan_reflecting
from r3l.records import AttemptKey, GroupPlan, Recalled, SlotResult
from tests.plug import worlds


def history(*groups):
    """Attempts of stored groups, by their rewards."""
    return [
        StoredAttempt(f"g{number}", slot, reward, number)
        for number, rewards in enumerate(groups)
        for slot, reward in enumerate(rewards)
    ]


def lease(stored, epoch=1, seed=0):
    return LeaseFacts("t", epoch, 9, stored, (), lambda: np.random.default_rng(seed))


def plans(stored, *, epoch=1, below=0.5):
    """How often each failure is shown in 400 leases; None: a plain group."""
    made = Counter()
    for seed in range(400):
        plan = plan_reflecting(lease(stored, epoch, seed), 4, below)
        made[plan.handed if plan else None] += 1
        assert plan is None or (plan.slots, plan.kind) == (4, REFLECTING)
    return made


def test_a_hard_task_reflects_on_any_of_its_failures_and_gets_as_many_plain_groups():
    found = plans(history((0.0, 1.0), (0.0,)))  # mean 1/3
    shown = {(AttemptKey("g0", 0),), (AttemptKey("g1", 0),)}
    assert set(found) == {None, *shown}
    assert 160 < found[None] < 240 and all(found[each] > 60 for each in shown)


@pytest.mark.parametrize(
    ("stored", "more"),
    [
        ((), {}),
        (((0.0, 0.0),), {"epoch": 0}),
        (((0.0, 1.0), (0.0,)), {"below": 1 / 3}),
        (((1.0, 1.0),), {"below": 1.0}),
        (((0.4, 0.6),), {}),
    ],
    ids=["no history", "the first epoch", "not below", "no failure", "half of the reward"],
)
def test_other_tasks_never_reflect(stored, more):
    assert set(plans(history(*stored), **more)) == {None}


def test_the_mean_of_a_task_leaves_retries_out_and_counts_no_reward_above_1():
    retry = StoredAttempt("g1", 2, 1.0, 1, of=0)
    assert plans([retry, *history((0.0, 0.0))], below=0.3)[None] < 400  # 0, not 1/3
    assert plans(history((5.0, 0.0, 0.0)))[None] < 400  # 1/3, not 5/3


def test_history_is_not_read_for_a_plain_group():
    class Unread:
        def __iter__(self):
            raise AssertionError("it was read")

    assert plan_reflecting(lease(Unread(), epoch=0), 4, 0.5) is None
    # The first random number of this seed is 0.51.
    assert plan_reflecting(lease(Unread(), seed=1), 4, 0.5) is None


class Reflecting(r3l.GRPO):
    """Every group reflects on the first attempt of the newest one."""

    def plan(self, lease):
        newest = next(iter(lease.history))
        return GroupPlan(2, REFLECTING, (AttemptKey(newest.group_id, 0),))

    async def explore(self, x):
        await self_reflection.explore(x)


def remembered():
    memory = r3l.Memory()
    worlds.explored(r3l.GRPO(group_size=2), memory)
    return memory


def text(ids):
    return worlds.policy().chat.tokenizer.decode(ids)


def test_every_attempt_reads_the_failure_and_keeps_a_sequence_without_it():
    memory, player = remembered(), worlds.Player()
    group = worlds.explored(Reflecting(), memory, player)
    [failure, _] = memory.groups[worlds.TASK.task_id][0].trajectories
    plain = {attempt.token_ids.tobytes() for attempt in memory.groups["corridor/1"][0].trajectories}
    for attempt in group.trajectories:
        read = attempt.as_read()
        assert text(read.token_ids) == player.prompts[-1] + f"{attempt.actions[-1]}<|im_end|>"
        for shown in ("It failed.", f"step 1 does: {failure.actions[1]}", "reflect briefly"):
            assert shown in text(read.token_ids)
        assert "gave" not in text(read.token_ids)  # the closing remark
        assert attempt.token_ids.tobytes() in plain and attempt.shown is not None


def test_a_failure_that_is_gone_fails_the_open_slots():
    memory = remembered()
    group = worlds.explored(Reflecting(), memory)
    actor = worlds.Actor(Reflecting(), group.plan, worlds.Player(), results=group.results[:1])
    assert [(r.status, r.cause) for r in actor.run()] == [("done", ""), ("failed", "shown_gone")]


def test_rows_of_reflecting_groups_are_made_of_what_was_read_and_others_stay():
    memory = remembered()
    group, plain = worlds.explored(Reflecting(), memory), memory.groups["corridor/1"][0]
    lost = SlotResult(2, "failed", cause="shown_gone")
    group = r3l.Group(
        "g7", group.task, GroupPlan(3, REFLECTING), "complete", (*group.results, lost)
    )
    recalled = [Recalled(plain.group_id, "g7", group.trajectories[0])]
    batch = r3l.Batch([plain, group], recalled=recalled, version=3)
    found = batch.as_read(is_reflecting)
    assert found.groups[0] is plain and found.recalled is recalled and found.version == 3
    assert found.groups[1].results[2] is lost
    for attempt, read in zip(group.trajectories, found.groups[1].trajectories, strict=True):
        ids, mask = attempt.as_shown()
        assert read.token_ids.tolist() == ids.tolist() and read.shown is None
        assert read.response_mask.tolist() == mask.tolist()
        assert read.logprobs[mask].tolist() == attempt.logprobs[attempt.response_mask].tolist()
        assert not read.logprobs[~mask].any()
    unchanged = r3l.Batch([plain])
    assert unchanged.as_read(is_reflecting) is unchanged
