"""The catalogue of groups, and the tasks made from it."""

import pytest

from buffer.tools import group_facts
from buffer.viewer import catalogue
from buffer.viewer.attempt_page import Texts
from buffer.viewer.catalogue import tasks
from tests.buffer.viewer import stores


def catalogue_of(store):
    return catalogue.Catalogue(store, Texts(None))


def test_groups_are_listed_newest_first_with_the_names_of_a_query(store):
    listed = catalogue_of(store).read()
    assert [one["group"] for one in listed[:2]] == ["g0000000040", "g0000000039"]
    assert len(listed) == 40
    assert set(listed[0]) == group_facts.NAMES | {"rewards", "failures", "times"}
    assert listed[0]["rewards"] == (0.0, 1.0, 1.0) and listed[0]["step"] == 4


def test_a_change_is_seen_and_only_what_changed_is_decoded(store, monkeypatch):
    decoded = []
    decode = catalogue.codec.decode
    monkeypatch.setattr(
        catalogue.codec, "decode", lambda kind, data: decoded.append(kind) or decode(kind, data)
    )
    seen = catalogue_of(store)
    seen.read()
    rows = decoded.count(stores.GroupRow)
    before, seen._next = seen.change, 0.0
    seen.read()  # nothing changed: nothing is read
    with store.write() as txn:
        row = txn.row("g0000000001")
        txn.put_row(row.with_changes(state="expired", cause="stale"))
    decoded.clear()
    assert rows == 40 and seen.read()[-1]["cause"] == "stale" and seen.change > before
    assert decoded.count(stores.GroupRow) == 1


def test_a_store_that_changes_all_the_time_is_read_a_twentieth_of_it(store, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(catalogue.time, "monotonic", lambda: now[0])
    seen, reads = catalogue_of(store), []
    monkeypatch.setattr(seen, "_read", lambda: reads.append(now.__setitem__(0, now[0] + 2.0)))
    for _ in range(100):
        with store.write() as txn:
            txn.put_count("x", len(reads) + int(now[0]))
        seen.read()
        now[0] += 1.0
    assert len(reads) == 3  # 2 s each, then 40 s nothing


def test_only_the_newest_groups_of_a_large_store_are_listed(store, monkeypatch):
    monkeypatch.setattr(catalogue, "GROUPS_LIMIT", 10)
    seen = catalogue_of(store)
    assert [one["group"][-2:] for one in seen.read()] == [f"{n}" for n in range(40, 30, -1)]
    assert (seen.summary()["total"], seen.summary()["listed"]) == (40, 10)


def test_a_page_and_the_numbers_of_groups_look_at_no_other_group(store, monkeypatch):
    looked, seen = [], catalogue_of(store)
    find = catalogue.group_facts.facts
    monkeypatch.setattr(
        catalogue.group_facts, "facts", lambda row: looked.append(row.group_id) or find(row)
    )
    total, newest = seen.page("train", "", 3)
    assert total == 40 and [one["group"] for one in newest] == looked
    assert looked == ["g0000000040", "g0000000039", "g0000000038"]
    _, older = seen.page("", looked[-1], 2)
    assert [one["group"][-2:] for one in older] == ["37", "36"] and len(looked) == 5
    assert seen.summary()["states"] == {"train": {"trained": 40}} and len(looked) == 5
    assert seen.page("eval", "", 9) == (0, []) == seen.page("nothing", "g" * 1000, 9)
    assert newest == list(seen.read()[:3])


def test_tasks_are_summed_up_and_put_in_order(store):
    groups = list(catalogue_of(store).read())
    newest = tasks(groups, "newest")
    assert [one["task"] for one in newest] == [f"door/{n:04}" for n in (3, 2, 1, 0)]
    assert newest[0] == {
        "task": "door/0003", "env": "doors", "newest": "g0000000040", "at": 1043.0, "groups": 10,
        "gain": newest[0]["gain"],
        "best": 1.0, "trend": [2 / 3] * 10, "mean": pytest.approx(2 / 3),
    }  # fmt: skip
    assert [one["task"][-1] for one in tasks(groups, "lowest")[:2]] == ["2", "0"]
    better = [group | {"gain": 0.25 if group["task"] == "door/0001" else None} for group in groups]
    assert [one["task"][-1] for one in tasks(better, "corrections")] == ["1", "3", "2", "0"]
    assert tasks(groups[:5], "most")[0]["task"] == "door/0003"  # twice, the others once


def test_a_task_without_a_trajectory_has_no_reward_and_comes_last(store):
    groups = [one | {"reward": None} if one["task"] == "door/0003" else one
              for one in catalogue_of(store).read()]  # fmt: skip
    last = tasks(groups, "lowest")[-1]
    assert (last["task"], last["mean"], last["best"], last["trend"]) == (
        "door/0003",
        None,
        None,
        [],
    )
