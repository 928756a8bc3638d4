"""Task samplers: every task once, near half solved, or environments with shares."""

from collections import Counter

import numpy as np
import pytest

from buffer.sampling import task_samplers
from buffer.sampling.task_samplers import TaskView
from buffer.storage.rows import GroupRow
from r3l.errors import UserError
from r3l.records import GroupPlan, Task
from r3l.settings.sampling import TaskSamplerConfig
from tests.buffer.fakes import finished


def row(rewards, retries=()):
    """A group of base attempts with these rewards, and of retries."""
    plan = GroupPlan(len(rewards), len(retries))
    played = tuple(plan.slots())
    return GroupRow("g1", "t", 0, plan, "trained", played=played, rewards=(*rewards, *retries))


def view(position=0, size=6, envs=(), histories=None, epoch=0, seed=0):
    histories = histories or {}
    return TaskView(
        seed, epoch, position, size, lambda: envs, lambda place: iter(histories.get(place, ()))
    )


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


def test_a_curriculum_without_history_gives_every_task_a_chance():
    picked = Counter(sampler("curriculum").next(view(position)) for position in range(600))
    assert set(picked) == set(range(6)) and max(picked.values()) < 150


def test_environments_get_their_shares_and_their_tasks_follow_in_turn():
    envs = ("a",) * 2 + ("b",) * 8
    rule = sampler("mixture", shares={"a": 1.0, "b": 3.0})
    leased = [rule.next(view(position, size=10, envs=envs)) for position in range(10)]
    picked = Counter(envs[place] for place in leased)
    assert picked in (Counter(a=2, b=8), Counter(a=3, b=7))
    own = [place for place in leased if envs[place] == "b"]
    assert len(set(own)) == len(own)


def test_an_environment_with_few_tasks_begins_again_from_its_first():
    envs = ("a",) + ("b",) * 9
    rule = sampler("mixture", shares={"a": 1.0})
    assert [rule.next(view(position, size=10, envs=envs)) for position in range(10)] == [0] * 10


def test_a_mixture_without_shares_or_tasks_is_refused():
    with pytest.raises(UserError, match=r"^buffer\.tasks\.shares: has no share"):
        sampler("mixture")
    with pytest.raises(UserError, match="no task is of c"):
        sampler("mixture", shares={"c": 1.0}).next(view(envs=("a",) * 6))


def test_an_unknown_task_sampler_is_refused():
    with pytest.raises(UserError, match=r"buffer\.tasks 'shufled': unknown \(did you mean"):
        sampler("shufled")


def test_the_service_leases_what_the_task_sampler_chooses(make_desk):
    tasks = [Task(f"{env}{i}", env, i) for env in ("keys", "workshop") for i in range(8)]
    desk = make_desk(
        groups_per_step=99, tasks={"name": "mixture", "shares": {"keys": 1.0, "workshop": 3.0}}
    )
    desk.add(tasks)
    leased = [desk.lease() for _ in range(8)]
    desk.reopen()
    leased += [desk.lease() for _ in range(8)]
    assert Counter(lease.task.env for lease in leased) == {"keys": 4, "workshop": 12}


def test_the_curriculum_of_a_service_reads_its_stored_groups(make_desk, tasks):
    desk = make_desk(
        groups_per_step=99, tasks={"name": "curriculum", "candidates": 4, "decay": 1.0}
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
