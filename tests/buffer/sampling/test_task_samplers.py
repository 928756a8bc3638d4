"""Task samplers: every task once, near half solved, or environments with shares."""

from collections import Counter

import numpy as np
import pytest

from buffer.sampling import task_samplers
from buffer.sampling.task_samplers import TaskView
from buffer.storage.stored_rows import GroupRow
from r3l.errors import UserError
from r3l.records import AttemptKey, GroupPlan
from r3l.run.settings.buffer_sampling import TaskSamplerConfig
from tests.buffer.fakes import finished


def row(rewards, retries=()):
    """A group of base attempts with these rewards, and of retries."""
    of = (*[-1] * len(rewards), *range(len(retries)))
    slots, plan = tuple(range(len(of))), GroupPlan(len(of))
    made = {"resolved_slots": slots, "of": of, "played": slots, "rewards": (*rewards, *retries)}
    return GroupRow("g1", "t", 0, plan, "trained", **made)


def view(position=0, size=6, histories=None, epoch=0, seed=0):
    histories = histories or {}
    return TaskView(seed, epoch, position, size, lambda place: iter(histories.get(place, ())))


def sampler(name, **settings):
    return task_samplers.make(TaskSamplerConfig(name=name, **settings))


def test_shuffled_leases_every_task_once_an_epoch_in_another_order_each():
    orders = [
        [sampler("shuffled").next(view(position, epoch=epoch)) for position in range(6)]
        for epoch in (0, 1)
    ]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(6)) and orders[0] != orders[1]
    assert orders[0] == np.random.default_rng([0, 0]).permutation(6).tolist()


def test_the_curriculum_prefers_tasks_that_are_half_solved():
    solved, failed, half = [row([1.0] * 8)] * 4, [row([0.0] * 8)] * 4, [row([1.0, 0.0] * 4)] * 4
    histories = {0: solved, 1: failed, 2: half, 3: solved, 4: failed, 5: failed}
    rule = sampler("curriculum", candidates=6)
    picked = Counter(rule.next(view(position, histories=histories)) for position in range(200))
    assert picked[2] > 190
    easy = sampler("curriculum", candidates=6, target=1.0)
    picked = Counter(easy.next(view(position, histories=histories)) for position in range(200))
    assert picked[0] + picked[3] == 200


def test_older_groups_count_less_by_the_decay():
    rule = sampler("curriculum", decay=0.5)
    history = {0: [row([1.0, 0.0]), row([1.0, 1.0]), row([0.0, 0.0])]}
    # successes 1 + 1 + 0.5·2, failures 1 + 1 + 0.25·2
    assert rule._posterior(view(histories=history), 0) == (3.0, 2.5)
    assert rule._posterior(view(), 0) == (1.0, 1.0)


def test_retries_do_not_count_as_successes_of_a_task():
    history = {0: [row([0.0, 0.0], retries=[1.0, 1.0])]}
    assert sampler("curriculum")._posterior(view(histories=history), 0) == (1.0, 3.0)


def test_groups_that_may_have_started_inside_stored_attempts_do_not_count():
    helped = row([1.0, 1.0])
    helped = helped.with_changes(plan=GroupPlan(2, "prefix", (AttemptKey("g0", 0),)))
    history = {0: [helped, row([0.0, 1.0]), *[helped] * 8, row([1.0])]}
    assert sampler("curriculum", decay=0.5)._posterior(view(histories=history), 0) == (2.5, 2.0)


def test_a_curriculum_without_history_gives_every_task_a_chance():
    picked = Counter(sampler("curriculum").next(view(position)) for position in range(600))
    assert set(picked) == set(range(6)) and max(picked.values()) < 150


def test_an_unknown_task_sampler_is_refused():
    with pytest.raises(UserError, match=r"buffer\.task_sampler 'shufled': unknown"):
        sampler("shufled")


def test_the_curriculum_of_a_service_reads_its_stored_groups(make_desk, tasks):
    desk = make_desk(
        groups_per_step=99, task_sampler={"name": "curriculum", "candidates": 4, "decay": 1.0}
    )
    desk.add(tasks(4))
    for _ in range(60):
        lease = desk.lease(plan=GroupPlan(8))
        easy = lease.task.task_id != "t0"
        desk.put(
            lease.group_id,
            [finished(slot=slot, reward=float(easy or slot < 4)) for slot in range(8)],
        )
    picked = Counter(desk.lease().task.task_id for _ in range(30))
    assert picked["t0"] > 20
