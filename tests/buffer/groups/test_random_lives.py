"""Random lives of a store against a model of plain dictionaries: every step adds up."""

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from buffer.groups import leases, progress
from buffer.groups.completion import REPLACED_BATCHES
from buffer.sampling.samplers import SAMPLERS
from buffer.storage.store import Store
from buffer.tools.verify import verify
from buffer.wire.operations import Lease
from r3l import codec
from r3l.errors import Conflict, DrawExpired, LeaseLost
from r3l.records import Group, GroupPlan, SlotResult, Task
from r3l.records.imported import as_imported
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import Desk, finished, thought

PER_STEP, ETA = 2, 2
SETTINGS = {"lease_s": 10.0, "max_staleness": ETA, "groups_per_step": PER_STEP}
actors = st.sampled_from("ab")


class Lives(RuleBasedStateMachine):
    """`states`: what each group should be in; `slots`, `thoughts`: what each should hold;
    `records`: the bytes of finished groups; `outcomes`: what should have become of each draw;
    `partial`: the progress of each open slot, and the version it was made at; `inserted`: groups
    that no actor played; `priorities`: those that a consumer set."""

    @initialize(sampler=st.sampled_from(sorted(SAMPLERS)), needs_contrast=st.booleans())
    def begin(self, sampler, needs_contrast):
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
        self.sampler, self.copies = sampler, 0
        self.needs_contrast, self.replaced = needs_contrast, []
        self.desk = self.open_desk()
        self.desk.add([Task(f"t{i}", "workshop", i) for i in range(3)])
        self.states, self.slots, self.oldest, self.holder = {}, {}, {}, {}
        self.version, self.drawn, self.steps, self.evicted = 0, {}, {}, set()
        self.expired, self.rewound = {}, []
        self.records, self.outcomes, self.trained_by = {}, {}, {}
        self.partial, self.thoughts = {}, defaultdict(dict)
        self.inserted, self.priorities = set(), {}

    def open_desk(self):
        algorithm = {"name": "dapo", "filter": self.needs_contrast}
        return Desk(self.folder / "store", sampler=self.sampler, algorithm=algorithm, **SETTINGS)

    def teardown(self):
        if hasattr(self, "desk"):
            assert verify(self.desk.store) == []
            self.desk.store.close()
            shutil.rmtree(self.folder)

    # ── actors ──────────────────────────────────────────────────────────────────────────

    @rule(actor=actors, slots=st.integers(1, 2))
    def lease(self, actor, slots):
        lease = self.desk.lease(actor, self.version, GroupPlan(slots))
        self._expire_hopeless()
        if isinstance(lease, Lease):
            group = lease.group_id
            assert group not in self.evicted
            if self.states.setdefault(group, "leased") == "leased":
                self.slots.setdefault(group, {})
            assert self.states[group] in ("leased", "filling")
            assert {r.slot for r in lease.accepted} == set(self.slots[group])
            assert {r.name for r in lease.reflections} == set(self.thoughts[group])
            self.holder[group] = (actor, lease.plan.slots)
            known = {slot: p for (name, slot), p in self.partial.items() if name == group}
            fresh = {s: p for s, (p, version) in known.items() if self.version - version <= ETA}
            assert {r.slot: codec.encode(r) for r in lease.partial} == fresh
            for slot in known.keys() - fresh.keys():
                del self.partial[group, slot]
        in_flight = [g for g, s in self.states.items() if s in ("leased", "filling", "complete")]
        assert len(in_flight) <= PER_STEP * (ETA + 1)

    @precondition(lambda self: self._unfinished())
    @rule(data=st.data(), actor=actors, slot=st.integers(0, 1), fails=st.booleans())
    def put(self, data, actor, slot, fails):
        group = data.draw(st.sampled_from(self._unfinished()))
        holder, slots = self.holder[group]
        slot = min(slot, slots - 1)
        known = slot in self.slots[group]
        result = SlotResult(slot, "failed", cause="env")
        if not fails:
            result = finished(slot, version=self.version, reward=float(slot))
        same = known and self.slots[group][slot] == codec.encode(result)
        try:
            ack = self.desk.put(group, result, actor)
        except LeaseLost:
            assert actor != holder and not known
            return
        except Conflict:
            assert known and not same
            return
        assert self.was_new(ack, known) != known and known == same
        if known:
            return
        assert actor == holder
        self.slots[group][slot] = codec.encode(result)
        self.partial.pop((group, slot), None)
        if not fails:
            self.oldest[group] = min(self.oldest.get(group, self.version), self.version)
        self.states[group] = "filling"
        if len(self.slots[group]) == slots:
            self.states[group] = "complete" if group in self.oldest else "expired"
            done = [r for r in map(self._result, self.slots[group].values()) if r.trajectory]
            if self.needs_contrast and len({r.trajectory.reward for r in done}) == 1:
                self.states[group] = "expired"
                self.replaced.append(group)

    @precondition(lambda self: self._unfinished())
    @rule(data=st.data(), actor=actors, name=st.sampled_from("xy"), text=st.sampled_from("pq"))
    def reflect(self, data, actor, name, text):
        group = data.draw(st.sampled_from(self._unfinished()))
        said = thought(name, text, version=self.version)
        known = self.thoughts[group].get(name)
        try:
            ack = self.desk.put(group, said, actor)
        except LeaseLost:
            assert actor != self.holder[group][0] and known is None
            return
        except Conflict:
            assert known not in (None, codec.encode(said))
            return
        assert not ack.complete and known in (None, codec.encode(said))
        assert self.was_new(ack, known is not None) == (known is None)
        self.thoughts[group][name] = codec.encode(said)

    @precondition(lambda self: self._unfinished())
    @rule(
        data=st.data(),
        actor=actors,
        slot=st.integers(0, 1),
        length=st.integers(8, 12),
        adds=st.booleans(),
    )
    def put_partial(self, data, actor, slot, length, adds):
        group = data.draw(st.sampled_from(self._unfinished()))
        holder, slots = self.holder[group]
        slot = min(slot, slots - 1)
        result = finished(slot, version=self.version, length=length)
        is_open = slot not in self.slots[group]
        known = self.partial.get((group, slot)) if adds else None
        since = self._result(known[0]) if known else None
        try:
            assert self.desk.put_partial(group, result, actor, since=since) == is_open
        except LeaseLost:
            assert actor != holder and is_open
            return
        if is_open:
            assert actor == holder
            self.partial[group, slot] = codec.encode(result), self.version

    @precondition(lambda self: self._unfinished())
    @rule(data=st.data())
    def release(self, data):
        group = data.draw(st.sampled_from(self._unfinished()))
        holder, slots = self.holder[group]
        self.desk.release([group], holder or "a")
        self.holder[group] = ("", slots)

    @rule(seconds=st.sampled_from([1.0, 11.0]))
    def time_passes(self, seconds):
        self.desk.now += seconds

    @rule(place=st.integers(0, 4))
    def insert(self, place):
        """Also of tasks that actors play: t0, t1 and t2."""
        attempts = [finished(slot, reward=float(slot)) for slot in (0, 1)]
        group = self.desk.insert(Task(f"t{place}", "workshop", place), attempts, source="people")
        assert group not in self.states.keys() | self.evicted
        self.states[group] = "trained"
        self.inserted.add(group)
        results = [as_imported(result, "people") for result in attempts]
        self.slots[group] = {result.slot: codec.encode(result) for result in results}

    @precondition(lambda self: self.states)
    @rule(data=st.data(), priority=st.floats(0, 9))
    def update_priorities(self, data, priority):
        group = data.draw(st.sampled_from(sorted(self.states)))
        is_set = self.states[group] != "expired"
        assert self.desk.update_priorities({group: priority}) == is_set
        if is_set:
            self.priorities[group] = priority

    # ── learner ─────────────────────────────────────────────────────────────────────────

    @rule(count=st.integers(1, PER_STEP))
    def draw(self, count):
        draw = self.desk.draw(count, self.version)
        for group, state in self.states.items():
            if state == "complete" and self.version - self.oldest[group] > ETA:
                self.states[group] = "expired"
        complete = sorted(g for g in self.states if self._is_drawable(g))
        if draw is None:
            assert len(complete) < count
            return
        # What was trained before the learner went back is drawn again in the same batches.
        again = [groups for groups in self.rewound if len(groups) == count]
        expected = tuple(complete[:count]) if self.sampler == "fifo" else draw.groups
        assert draw.groups == expected or draw.groups in again
        assert set(draw.replayed) == set(draw.groups) & self.inserted
        named = tuple(self.replaced[-REPLACED_BATCHES * PER_STEP :])
        assert draw.replaced[len(draw.replaced) - len(named) :] == named
        self.replaced = []
        assert len(set(draw.groups)) == count and set(draw.groups) <= set(complete)
        for record in getattr(draw, "records", ()):
            assert {r.slot: codec.encode(r) for r in record.results} == self.slots[record.group_id]
        self.drawn[draw.draw_id] = draw.groups
        self.outcomes[draw.draw_id] = "open"
        self.states |= dict.fromkeys(draw.groups, "drawn")

    @precondition(lambda self: self.drawn)
    @rule()
    def commit(self):
        draw_id, groups = self.drawn.popitem()
        self.version += 1
        self.desk.commit(draw_id, self.version)
        self.steps[self.version] = groups
        self.outcomes[draw_id], self.trained_by[self.version] = "trained", draw_id
        self.states |= dict.fromkeys(groups, "trained")

    @rule()
    def learner_dies(self):
        self.desk.release_draws()
        self._draws_end("released")

    @precondition(lambda self: self.drawn)
    @rule()
    def learner_is_silent_for_too_long(self):
        self.desk.do(leases.expire_overdue)  # the service looks every second
        self.desk.now += 3601
        self.desk.do(leases.expire_overdue)
        self._expire_hopeless()
        self.expired |= self.drawn
        self._draws_end("expired")

    @precondition(lambda self: self.expired)
    @rule()
    def commit_after_the_draw_expired(self):
        draw_id, groups = self.expired.popitem()
        if all(self._is_drawable(group) for group in groups):
            self.drawn[draw_id] = groups
            self.commit()
            return
        with pytest.raises(DrawExpired):
            self.desk.commit(draw_id, self.version + 1)

    @precondition(lambda self: self.version)
    @rule(back=st.integers(0, 2))
    def learner_goes_back(self, back):
        self.learner_dies()
        self.version = max(0, self.version - back)
        self.desk.set_version(self.version)
        for step in [step for step in self.steps if step > self.version]:
            self.rewound.append(self.steps[step])
            self.outcomes[self.trained_by.pop(step)] = "rewound"
            for group in set(self.steps.pop(step)) - self.evicted:
                self.states[group] = self._unused(group)

    # ── the store ───────────────────────────────────────────────────────────────────────

    @rule(keep=st.integers(0, 6))
    def evict(self, keep):
        closed = [g for g, s in sorted(self.states.items()) if s in ("trained", "expired")]
        limits = RetentionConfig(groups=keep, grace_s=0.0)
        gone = self.desk.evict(limits)
        expected = closed[: max(0, len(self.states) - keep)]
        assert gone == expected
        for group in expected:
            del self.states[group]
            self.slots.pop(group)
            self.thoughts.pop(group, None)
            self.records.pop(group)
            self.evicted.add(group)

    @rule()
    def restart(self):
        self.desk.reopen()

    @rule()
    def snapshot(self):
        """A compacted copy, made while others read and write, is the store of this moment."""
        copy = Store(self._copied(), read_only=True)
        assert verify(copy) == []
        with copy.read() as txn:
            self._agrees(txn)
        copy.close()

    @rule()
    def move_to_a_snapshot(self):
        copied = self._copied()
        self.desk.store.close()
        shutil.rmtree(self.folder / "store")
        copied.rename(self.folder / "store")
        self.desk.open()

    @precondition(lambda self: hasattr(self, "desk"))
    @invariant()
    def it_all_adds_up(self):
        with self.desk.store.read() as txn:
            self._agrees(txn)
            self.remembers(txn)

    # ── what the rules share, and what a real service does otherwise ────────────────────

    def was_new(self, ack, known):
        return bool(ack.new)

    def remembers(self, txn):
        """What is kept in memory is what lies on the disk."""
        assert txn.counts() == +self.desk.index.counts

    def _agrees(self, txn):
        counts = txn.counts()
        for state in ("leased", "filling", "complete", "drawn", "trained", "expired"):
            there = sum(s == state for s in self.states.values())
            assert counts[f"group/train/{state}"] == there, state
        assert counts["made"] == len(self.states) + len(self.evicted)
        for group, slots in self.slots.items():
            data = txn.group_bytes(txn.row(group))
            found = codec.decode(Group, data)
            assert {r.slot: codec.encode(r) for r in found.results} == slots
            assert {r.name: codec.encode(r) for r in found.reflections} == self.thoughts[group]
            if self.states[group] not in ("leased", "filling"):
                assert self.records.setdefault(group, data) == data
        for group in {group for group, _ in self.partial} - self.evicted:
            known = {slot: p for (name, slot), (p, _) in self.partial.items() if name == group}
            slots = progress.slots_with_progress(txn, group)
            found = {slot: progress.newest(txn, group, slot)[1] for slot in slots}
            assert found == (known if txn.row(group).unfinished else {})
        assert all(txn.evicted(group) for group in self.evicted)
        known = {group: txn.row(group).priority for group in self.states}
        assert known == {group: self.priorities.get(group) for group in self.states}
        assert {row.step: row.groups for row in txn.steps_after(-1)} == self.steps
        assert counts["draws"] == txn.size("draw") == len(self.outcomes)
        assert {draw: txn.draw(draw).outcome for draw in self.outcomes} == self.outcomes

    def _copied(self):
        self.copies += 1
        self.desk.store.copy(self.folder / f"copy-{self.copies}")
        return self.folder / f"copy-{self.copies}"

    def _draws_end(self, outcome):
        for draw_id, groups in self.drawn.items():
            self.states |= {group: self._unused(group) for group in groups}
            self.outcomes[draw_id] = outcome
        self.drawn = {}

    def _unused(self, group):
        return "trained" if group in self.inserted else "complete"

    def _is_drawable(self, group):
        """Whether the group is free and no step trained on it: `reuse` is 1."""
        used = any(group in groups for groups in self.steps.values())
        return not used and self.states.get(group) == self._unused(group)

    def _result(self, encoded):
        return codec.decode(SlotResult, encoded)

    def _unfinished(self):
        found = [g for g, s in self.states.items() if s in ("leased", "filling")]
        return sorted(found)

    def _expire_hopeless(self):
        """What the service drops when it looks for leases that ran out."""
        for group in self._unfinished():
            if self.desk.row(group).state == "expired":
                assert self.version - self.oldest[group] > ETA
                self.states[group] = "expired"


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
