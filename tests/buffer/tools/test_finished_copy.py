"""Copies of finished groups, drawn like any store: which groups, and what they recall."""

import pytest

from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.finished_copy import copy_finished
from buffer.tools.verify import verify
from r3l.errors import UserError
from r3l.records import AttemptKey, GroupPlan, Origin, SlotResult
from tests.buffer.fakes import Desk, finished, thought


@pytest.fixture
def store(tmp_path, tasks):
    """Makes a finished store of groups with these rewards, all of one task."""

    def make(*rewards, name="store"):
        desk = Desk(tmp_path / name, groups_per_step=1, max_staleness=99)
        desk.add(tasks(1))
        for step, one in enumerate(rewards):
            desk.complete(version=step, rewards=one)
            desk.commit(desk.draw(1, version=step).draw_id, step + 1)
        desk.store.close()
        return desk.folder

    return make


@pytest.fixture
def copied(tmp_path):
    """Opens a copy of stores as a desk."""
    desks = []

    def copy(folders, *, contrast=False, seen=None, **settings):
        to = tmp_path / f"copy{len(desks)}"
        copy_finished(
            folders, to, contrast=contrast, on_group=[].append if seen is None else seen.append
        )
        desks.append(Desk(to, max_staleness=99, **settings))
        return desks[-1]

    yield copy
    for desk in desks:
        desk.store.close()


def test_trained_and_expired_groups_are_complete_again_and_the_copy_is_sound(tmp_path, tasks):
    desk = Desk(tmp_path / "store", max_staleness=1, groups_per_step=1, algorithm={"name": "dapo"})
    desk.add(tasks(2))
    desk.complete(rewards=(0.0, 1.0))
    desk.commit(desk.draw(1).draw_id, 1)
    desk.complete(version=1, rewards=(1.0, 0.0))
    desk.discard(desk.draw(1, version=1).draw_id, "not_finite")
    desk.complete(version=1, rewards=(1.0, 1.0))  # expires without contrast
    desk.complete(version=1, rewards=(1.0, 0.0))
    desk.set_version(3)
    assert desk.draw(1, version=3) is None  # and the last one is stale
    desk.lease(version=3)
    desk.store.close()
    copy_finished([desk.folder], tmp_path / "copy", contrast=False, on_group=lambda group: None)
    with Store(tmp_path / "copy", read_only=True) as copy, Store(desk.folder) as source:
        rows = list(store_reads.rows(copy))
        names = [row["group"] for row in rows]
        assert names == ["g0000000001", "g0000000003", "g0000000004"]
        assert {(row["state"], row["cause"], row["uses"]) for row in rows} == {("complete", "", 0)}
        assert verify(copy) == []
        for name in names:
            theirs, ours = store_reads.group(source, name), store_reads.group(copy, name)
            assert [r.trajectory.token_ids.tolist() for r in ours.results] == [
                r.trajectory.token_ids.tolist() for r in theirs.results
            ]
            assert ours.task == theirs.task and list(ours.rewards) == list(theirs.rewards)


def test_groups_without_contrast_are_left_out_for_an_algorithm_that_needs_it(store, copied):
    folder, seen = store((0.0, 0.0), (0.0, 1.0), (1.0, 0.0)), []
    desk = copied([folder], contrast=True, seen=seen, algorithm={"name": "dapo"})
    assert desk.draw(2).groups == ("g0000000002", "g0000000003")
    assert [group.group_id for group in seen] == ["g0000000002", "g0000000003"]


def test_the_groups_of_a_second_store_follow_those_of_the_first(store, copied):
    folders = [store(*[(0.0, 1.0)] * 2, name=name) for name in ("a", "b")]
    desk = copied(folders, groups_per_step=4)
    assert desk.draw(4).groups == tuple(f"g{number:010d}" for number in (1, 2, 3, 4))
    assert verify(desk.store) == []


def test_recall_reaches_over_all_stores_but_not_into_the_group_itself(store, copied):
    folders = [store((0.0, 0.0), name="a"), store((0.0, 1.0), name="b")]
    arpo = {"algorithm": {"name": "arpo"}, "groups_per_step": 1}
    drawn = copied(folders, **arpo).draw(1)
    assert drawn.groups == ("g0000000001",)
    [one] = drawn.recalled
    assert (one.into, one.group_id, one.slot) == ("g0000000001", "g0000000002", 1)
    assert copied(folders[:1], **arpo).draw(1).recalled == ()


def test_every_group_is_drawn_as_often_as_reuse_allows(store, copied):
    desk = copied([store(*[(0.0, 1.0)] * 5)], sampler={"reuse": 2})
    batches = []
    while drawn := desk.draw(2, version=len(batches)):
        batches.append(drawn.groups)
        desk.commit(drawn.draw_id, len(batches))
    assert batches[:2] == [("g0000000001", "g0000000002")] * 2 and len(batches) == 4


def test_a_learner_that_goes_back_draws_the_same_random_batches_again(store, copied):
    folder = store(*[(0.0, 1.0), (1.0, 1.0), (0.0, 0.0)] * 4)
    settings = {
        "sampler": {"name": "uniform", "reuse": 3, "cooldown": 1},
        "algorithm": {"name": "r3"},
        "groups_per_step": 2,
    }

    def train(desk, first, last):
        found = []
        for version in range(first, last):
            drawn = desk.draw(2, version=version)
            found.append((drawn.groups, drawn.recalled))
            desk.commit(drawn.draw_id, version + 1)
        return found

    whole = train(copied([folder], **settings), 0, 9)
    assert any(recalled for _, recalled in whole) and len(set(whole)) == 9
    cut = copied([folder], **settings)
    assert train(cut, 0, 5) == whole[:5]
    cut.draw(2, version=5)
    cut.reopen()
    cut.release_draws()
    cut.set_version(3)
    assert train(cut, 3, 9) == whole[3:]


def test_what_cannot_be_copied_is_refused_and_nothing_is_left(store, tmp_path):
    Desk(tmp_path / "empty").store.close()
    flat = store((0.0, 0.0), name="flat")
    for folders, contrast, said in (
        ([tmp_path / "empty"], False, "holds no finished training group;"),
        ([flat], True, "no finished training group whose rewards differ"),
        ([flat, flat], False, "names a store twice"),
        ([tmp_path / "nowhere"], False, "no store there"),
    ):
        with pytest.raises(UserError, match=said):
            copy_finished(
                folders, tmp_path / "run" / "to", contrast=contrast, on_group=lambda group: None
            )
    assert not (tmp_path / "run").exists()


def test_groups_that_a_group_names_are_renumbered_with_it(store, copied, tmp_path, tasks):
    folders = [store((0.0, 1.0), name="a")]
    desk = Desk(tmp_path / "b", groups_per_step=1, max_staleness=99)
    desk.add(tasks(1))
    first = desk.complete(rewards=(0.0, 1.0))
    desk.commit(desk.draw(1).draw_id, 1)
    lease = desk.lease(version=1, plan=GroupPlan(3, "again", (AttemptKey(first, 1),)))
    assert [one.group_id for one in lease.handed] == [first]
    begun = finished(1, version=1, pivot=0, origin=Origin(first, 1, 0))
    desk.put(lease.group_id, [begun, SlotResult(2, "skipped", of=0), thought(version=1)])
    desk.put(lease.group_id, finished(0, version=1))
    desk.store.close()
    desk = copied([*folders, desk.folder])
    assert verify(desk.store) == []
    group = store_reads.group(desk.store, "g0000000003")
    assert group.plan.handed == (AttemptKey("g0000000002", 1),) and group.plan.kind == "again"
    assert [r.trajectory and r.trajectory.origin for r in group.results] == [
        None, Origin("g0000000002", 1, 0), None
    ]  # fmt: skip
    assert [reflection.name for reflection in group.reflections] == ["reflect-0"]
