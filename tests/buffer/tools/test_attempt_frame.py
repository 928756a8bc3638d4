"""Groups as a table: one row for every resolved slot."""

import sys
from math import isnan

import pytest

from buffer.storage.store import Store
from buffer.tools.attempt_frame import COLUMNS, frame
from r3l.errors import UserError
from r3l.records import GroupPlan, SlotResult
from tests.buffer.fakes import finished


@pytest.fixture
def store(make_desk, tasks):
    """Of three groups, made at second 1000: two were trained in step 2 at version 1, the third has
    a retry of one base, a failed one and one that was not triggered."""
    desk = make_desk(max_staleness=5)
    desk.add(tasks(3))
    desk.add(tasks(1, "e"), "eval", "step-9", min_version=9)
    groups = [desk.lease(version=0).group_id for _ in range(2)]
    desk.set_version(1)
    third = desk.lease(version=1, plan=GroupPlan(4)).group_id
    for reward, group in enumerate(groups):
        desk.put(group, finished(reward=float(reward), version=reward))
    retry = finished(3, of=1, version=1, reward=0.5, pivot=0)
    desk.put(third, [finished(1, version=1), retry])
    desk.put(third, SlotResult(0, "failed", cause="env"))
    desk.now = 1007.0
    desk.put(third, SlotResult(2, "skipped", cause="no_base", of=0))
    desk.commit(desk.draw(2, version=1).draw_id, 2)
    desk.store.close()
    with Store(desk.folder, read_only=True) as store:
        yield store


def test_a_row_of_a_frame_is_a_slot_with_what_is_known_of_its_attempt(store) -> None:
    table = frame(store)
    assert list(table.columns) == list(COLUMNS)
    first, second, failed, base, skipped, retry = table.to_dict("records")
    assert (first["group_id"], second["group_id"]) == ("g0000000001", "g0000000002")
    assert isnan(first.pop("expired_at"))
    assert first | {"group_id": "", "task_id": ""} == {
        "group_id": "", "task_id": "", "env": "workshop", "purpose": "train", "tag": "",
        "state": "trained", "expired": "", "actor": "a", "role": "base", "slot": 0,
        "status": "done", "cause": "", "finish": "terminated", "base": 0, "of": None,
        "pivot": None,
        "reward": 0.0, "steps": 1, "tokens": 6, "length": 8, "seconds": 0.0,
        "oldest_version": 0, "newest_version": 0, "step": 2, "uses": 1, "staleness": 1,
        "leased_at": 1000.0, "complete_at": 1000.0, "drawn_at": 1007.0, "trained_at": 1007.0,
    }  # fmt: skip
    assert (second["reward"], second["staleness"], second["oldest_version"]) == (1.0, 0, 1)
    third = (failed, base, skipped, retry)
    assert [one["role"] for one in third] == ["base", "base", "distilled", "distilled"]
    assert [one["slot"] for one in third] == [0, 1, 2, 3]
    assert [one["status"] for one in third] == ["failed", "done", "skipped", "done"]
    assert failed["cause"] == "env" and isnan(failed["reward"]) and failed["steps"] is None
    assert [one["of"] for one in third] == [None, None, 0, 1]
    assert (retry["pivot"], retry["base"], retry["complete_at"]) == (0, 1, 1007.0)
    assert (retry["uses"], retry["step"], retry["staleness"]) == (0, None, None)
    assert isnan(retry["trained_at"])


@pytest.mark.parametrize(
    ("filters", "rows"),
    [
        ({}, 6),
        ({"state": "trained"}, 2),
        ({"state": "complete", "purpose": "train"}, 4),
        ({"limit": 1}, 4),
        ({"limit": 2}, 5),
        ({"purpose": "eval"}, 0),
        ({"tag": "step-9"}, 0),
        ({"tag": ""}, 6),
    ],
)
def test_a_frame_is_filtered_as_a_query_is(store, filters, rows) -> None:
    assert len(frame(store, **filters)) == rows


def test_a_pandas_frame_has_typed_columns_also_without_rows(store) -> None:
    full, empty = frame(store), frame(store, purpose="eval")
    assert full["reward"].dtype == "float64" and full["pivot"].dtype == "Int64"
    assert list(full.dtypes) == list(empty.dtypes) and len(empty) == 0
    assert full.groupby("role")["reward"].mean().to_dict() == {"base": 1 / 3, "distilled": 0.5}


def test_a_frame_without_pandas_names_what_to_install(store, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pandas; .*'r3l\[frame\]'"):
        frame(store)


def test_several_retries_of_an_attempt_have_a_row_each(make_desk, tasks) -> None:
    desk = make_desk()
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(4)).group_id
    retries = [finished(slot, of=2, pivot=0) for slot in (3, 0)]
    desk.put(group, [finished(2), *retries, SlotResult(1, "skipped", of=2)])
    table = frame(desk.store)
    assert table["slot"].tolist() == [0, 1, 2, 3]
    assert [*table["of"].fillna(-1)] == [2, 2, -1, 2] and table["base"].tolist() == [2, 2, 2, 2]
    assert table["role"].tolist() == ["distilled", "distilled", "base", "distilled"]
