"""Staleness: the bound holds under every schedule, and every actor is granted in the end."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buffer import Wait
from buffer.groups.staleness import is_stale, may_start
from buffer.wire.operations import Lease
from r3l.errors import LeaseLost
from r3l.records import GroupPlan, SlotResult

counts = st.integers(1, 64)


@given(version=st.integers(0, 1000), per_step=counts, eta=st.integers(0, 8), data=st.data())
def test_an_actor_at_the_learners_version_is_granted_whenever_a_batch_is_missing(
    version, per_step, eta, data
):
    ahead = data.draw(st.integers(0, per_step - 1))
    assert may_start(
        learner=version, ahead=ahead, per_step=per_step, max_staleness=eta, actor=version
    )


@given(per_step=counts, eta=st.integers(0, 8), lag=st.integers(0, 8))
def test_no_more_groups_are_in_flight_than_can_be_drawn_fresh(per_step, eta, lag):
    most = per_step * max(0, eta + 1 - lag)
    granted = [
        may_start(learner=10, ahead=i, per_step=per_step, max_staleness=eta, actor=10 - lag)
        for i in range(most + per_step)
    ]
    assert granted == [i < most for i in range(most + per_step)]


def test_one_batch_is_in_flight_without_staleness_and_only_at_the_learners_version():
    assert may_start(learner=7, ahead=3, per_step=4, max_staleness=0, actor=7)
    assert not may_start(learner=7, ahead=4, per_step=4, max_staleness=0, actor=7)
    assert not may_start(learner=7, ahead=0, per_step=4, max_staleness=0, actor=6)


def test_a_group_is_stale_from_one_step_beyond_the_limit():
    assert not is_stale(5, learner=9, limit=4) and is_stale(4, learner=9, limit=4)
    assert not is_stale(9, learner=9, limit=0) and is_stale(8, learner=9, limit=0)


def test_groups_without_a_holder_never_prevent_their_own_takeover(make_desk, tasks):
    desk = make_desk(groups_per_step=2, max_staleness=0)
    desk.add(tasks(9))
    lost = [desk.lease("dead").group_id for _ in range(2)]
    assert isinstance(desk.lease("b"), Wait)
    desk.now += 11.0
    assert [desk.lease("b").group_id for _ in range(2)] == lost


class Schedule:
    """The rules alone: groups are [state, oldest version, holder], in the order they were made."""

    def __init__(self, chance):
        self.chance = chance
        self.eta, self.per_step = chance.randint(0, 4), chance.randint(1, 6)
        self.version = self.published = 0
        self.actors = dict.fromkeys(range(chance.randint(1, 5)), 0)
        self.groups = []

    def of(self, state):
        return [group for group in self.groups if group[0] == state]

    def granted(self, version):
        unheld = len(self.of("unheld"))
        ahead = len(self.groups) - unheld
        return may_start(
            learner=self.version,
            ahead=ahead,
            per_step=self.per_step,
            max_staleness=self.eta,
            actor=version,
        )

    def act(self, actor):
        chance, mine = self.chance, [g for g in self.of("held") if g[2] == actor]
        if chance.random() < 0.4:
            self.actors[actor] = self.published
        if mine and chance.random() < 0.7:
            group = chance.choice(mine)
            group[0] = "complete"
            if chance.random() < 0.1:  # nothing came of it
                self.groups.remove(group)
        elif mine and chance.random() < 0.1:  # it dies, and its leases run out
            for group in mine:
                group[0] = "unheld"
        elif self.granted(self.actors[actor]):
            version = self.actors[actor]
            if unheld := self.of("unheld"):
                unheld[0][:] = ["held", min(unheld[0][1], version), actor]
            else:
                self.groups.append(["held", version, actor])

    def learn(self):
        if drawn := self.of("drawn"):
            if self.chance.random() < 0.1:  # it dies and comes back
                for group in drawn:
                    group[0] = "complete"
                return
            self.version += 1
            self.groups = [group for group in self.groups if group[0] != "drawn"]
        else:
            stale = [g for g in self.of("complete") if self.version - g[1] > self.eta]
            self.groups = [group for group in self.groups if group not in stale]
            if len(batch := self.of("complete")[: self.per_step]) == self.per_step:
                for group in batch:
                    group[0] = "drawn"
        if self.chance.random() < 0.7:
            self.published = self.version

    def check(self):
        assert all(self.version - group[1] <= self.eta for group in self.of("drawn"))
        busy = len(self.groups) - len(self.of("unheld"))
        room = self.per_step * (self.eta + 1)
        assert busy <= room
        # Whoever is at the learner's version is refused only where batches up to η are at hand.
        assert self.granted(self.version) == (busy < room)

    def run(self, steps=6, patience=4000):
        for _ in range(patience):
            if self.chance.random() < 0.3:
                self.learn()
            else:
                self.act(self.chance.choice(list(self.actors)))
            self.check()
            if self.version >= steps:
                return
        raise AssertionError(f"stuck at version {self.version}: {self.groups}")


def test_random_schedules_keep_the_bound_and_never_get_stuck(soak):
    for seed in range(20_000 if soak else 2000):
        Schedule(random.Random(seed)).run()


class Simulation:
    """Actors and a learner on the real operations, in random order with random accidents."""

    def __init__(self, desk, done, chance, steps, rewards=(0.0,)):
        self.desk, self.done, self.chance, self.steps = desk, done, chance, steps
        self.rewards = rewards
        self.version, self.published, self.step_versions = 0, 0, []
        self.actors = {f"a{i}": 0 for i in range(chance.randint(1, 4))}
        self.held = {}
        self.drawn = None

    def act(self, actor):
        chance, desk = self.chance, self.desk
        if chance.random() < 0.4:
            self.actors[actor] = self.published
        mine = [group for group, (holder, _) in self.held.items() if holder == actor]
        if mine and chance.random() < 0.8:
            group = chance.choice(mine)
            _, missing = self.held.pop(group)
            self.finish(actor, group, missing)
        elif chance.random() < 0.05:  # the actor dies with all it holds
            self.held = {g: h for g, h in self.held.items() if h[0] != actor}
        else:
            lease = desk.lease(actor, self.actors[actor], GroupPlan(chance.randint(1, 2)))
            if isinstance(lease, Lease):
                missing = set(range(lease.plan.slots)) - {result.slot for result in lease.accepted}
                self.held[lease.group_id] = (actor, missing)

    def finish(self, actor, group, missing):
        try:
            for slot in missing:
                version = self.actors[actor]
                failed = SlotResult(slot, "failed", cause="env")
                reward = self.chance.choice(self.rewards)
                result = self.done(slot, version=version, reward=reward)
                self.desk.put(group, failed if self.chance.random() < 0.2 else result, actor)
                if self.chance.random() < 0.1:
                    return  # abandoned half-way
        except LeaseLost:
            pass

    def learn(self):
        desk = self.desk
        if self.drawn is None:
            self.drawn = desk.draw(desk.config.learner.groups_per_step, self.version)
            for group in self.drawn.groups if self.drawn else ():
                age = self.version - desk.row(group).oldest_version
                assert 0 <= age <= desk.config.buffer.max_staleness
        elif self.chance.random() < 0.1:  # the learner dies and comes back
            desk.release_draws()
            self.drawn = None
        else:
            self.version += 1
            desk.commit(self.drawn.draw_id, self.version)
            self.drawn = None
        if self.chance.random() < 0.7:
            self.published = self.version

    def run(self, patience=3000):
        for turn in range(patience):
            self.desk.now += self.chance.random()
            if self.chance.random() < 0.3:
                self.learn()
            else:
                self.act(self.chance.choice(list(self.actors)))
            if self.version >= self.steps:
                return turn
        raise AssertionError(f"stuck at version {self.version}: {self.desk.index.counts}")


@pytest.mark.parametrize("seed", range(12))
def test_training_goes_on_under_random_schedules_and_no_batch_is_too_old(
    make_desk, tasks, done, seed
):
    chance = random.Random(seed)
    desk = make_desk(max_staleness=seed % 4, groups_per_step=chance.randint(1, 5), lease_s=5.0)
    desk.add(tasks(7))
    Simulation(desk, done, chance, steps=8).run()
    with desk.store.read() as txn:
        trained = [g for step in range(1, 9) for g in txn.step(step).groups]
    assert len(trained) == len(set(trained)) == 8 * desk.config.learner.groups_per_step


@pytest.mark.parametrize("seed", range(12))
def test_groups_without_contrast_are_replaced_until_every_batch_is_full(
    make_desk, tasks, done, seed
):
    chance = random.Random(seed)
    per_step = chance.randint(1, 5)
    desk = make_desk(
        max_staleness=seed % 4, groups_per_step=per_step, lease_s=5.0, algorithm={"name": "dapo"}
    )
    desk.add(tasks(7))
    Simulation(desk, done, chance, steps=4, rewards=(0.0, 0.0, 0.0, 1.0)).run(patience=20_000)
    with desk.store.read() as txn:
        trained = [txn.row(g) for step in range(1, 5) for g in txn.step(step).groups]
        flat = [row for row in txn.rows() if row.cause == "no_contrast"]
    assert len(trained) == 4 * per_step and all(row.contrast for row in trained)
    assert flat and not any(row.contrast or row.steps for row in flat)
