"""What `verify` finds: every list and count that does not follow from the groups."""

import pytest
from msgspec.structs import replace

from buffer.storage.layout import link_key, reflection_key, u64
from buffer.tools.verify import verify
from r3l import codec
from r3l.records import GroupPlan, Task
from tests.buffer.fakes import thought


@pytest.fixture
def filled(desk, tasks, done):
    """Groups: two trained, drawn, given back, filling; draws: trained, released, open."""
    desk.add(tasks(4))
    for _ in range(3):
        desk.complete()
    desk.commit(desk.draw(2).draw_id, 1)
    desk.complete()
    desk.draw(2)
    desk.release_draws()
    desk.draw(1)
    half = desk.lease(version=1, plan=GroupPlan(2)).group_id
    desk.put(half, done(0, version=1))
    assert [desk.row(f"g{n:010d}").state for n in range(1, 6)] == [
        "trained", "trained", "drawn", "complete", "filling"
    ]  # fmt: skip
    assert verify(desk.store) == []
    return desk


def _problems(desk, change):
    with desk.store.write() as txn:
        change(txn)
    return "\n".join(verify(desk.store))


def _change_draw(draw_id, **changes):
    return lambda txn: txn.put_draw(replace(txn.draw(draw_id), **changes))


def test_a_group_still_drawn_after_its_draw_was_released_is_found(filled):
    said = _problems(filled, _change_draw(3, outcome="released"))
    assert "g0000000003: drawn by draw 3" in said


def test_an_open_draw_of_a_group_in_another_state_is_found(filled):
    said = _problems(filled, _change_draw(2, outcome="open"))
    assert "draw 2: holds g0000000004" in said


@pytest.mark.parametrize("field", ["groups", "replaced"])
@pytest.mark.parametrize("draw_id", [1, 2, 3])
def test_a_draw_of_an_unknown_group_is_found(filled, draw_id, field):
    said = _problems(filled, _change_draw(draw_id, **{field: ("g0000000099",)}))
    assert f"draw {draw_id}: names group g0000000099" in said


@pytest.mark.parametrize("draw_id", [1, 2])
def test_a_missing_draw_is_found(filled, draw_id):
    said = _problems(filled, lambda txn: txn.delete("draw", u64(draw_id)))
    assert f"draw {draw_id}: missing" in said


def test_a_missing_last_draw_is_found(filled):
    said = _problems(filled, lambda txn: txn.delete("draw", u64(3)))
    assert "count draws: 3, but there are 2" in said
    assert "g0000000003: drawn by draw 3" in said


def test_draws_and_steps_that_contradict_each_other_are_found(filled):
    said = _problems(filled, _change_draw(1, step=7))
    assert "draw 1: trained in step 7" in said
    assert "step 1: names draw 1" in said


def test_progress_of_a_slot_that_is_not_open_is_found(filled):
    def change(txn):
        txn.put("partial", link_key("g0000000005", 0, 0), b"")

    assert "g0000000005: has progress " in _problems(filled, change)


def test_a_reflection_that_is_missing_or_too_many_is_found(filled):
    name = "g0000000005"
    filled.put(name, thought(version=1))
    assert verify(filled.store) == []
    key = reflection_key(name, "reflect-0")
    with filled.store.read() as txn:
        data = txn.get("reflection", key)
    said = _problems(filled, lambda txn: txn.delete("reflection", key))
    assert said == f"{name}: the reflections differ between its record and its row"
    filled.do(lambda work: work.txn.put("reflection", key, data))
    said = _problems(filled, lambda txn: txn.put("reflection", b"g0000000001" + key[11:], data))
    assert said.startswith("g0000000001: the reflections differ between its record and its row")


@pytest.mark.parametrize("changes", [{"of": (5,)}, {"resolved_slots": (1,), "of": (-1,)}])
def test_a_row_whose_slots_are_not_those_of_its_record_is_found(filled, changes):
    row = filled.row("g0000000001").with_changes(**changes)
    said = _problems(filled, lambda txn: txn.put_row(row))
    assert "g0000000001: the resolved slots differ" in said


@pytest.mark.parametrize("table", ["history", "tag", "listed", "task_id"])
def test_a_list_with_missing_or_extra_keys_is_found(filled, table):
    with filled.store.read() as txn:
        lines = list(txn.scan(table))
    one = f"table {table}: 1 missing"
    assert one in _problems(filled, lambda txn: txn.delete(table, lines[0][0]))
    said = _problems(filled, lambda txn: [txn.delete(table, key) for key, _ in lines])
    assert f"table {table}: {len(lines)} missing" in said
    more = [*lines, (lines[0][0] + b"x", lines[0][1])]
    said = _problems(filled, lambda txn: [txn.put(table, *line) for line in more])
    assert said == f"table {table}: 1 too many, the first {_first(table, more[-1])!r}"


def _first(table, line):
    return line if table == "task_id" else line[0]


def test_a_task_id_of_another_task_is_found(filled):
    with filled.store.read() as txn:
        (key, _), *_ = txn.scan("task_id")
    assert "table task_id" in _problems(filled, lambda txn: txn.put("task_id", key, u64(3)))


@pytest.mark.parametrize("index", [0, 3])
def test_a_missing_task_is_found(filled, index):
    key = b"train\0\0" + u64(index)
    said = _problems(filled, lambda txn: txn.delete("task", key))
    assert "task_id: 1 too many" in said
    if index == 0:
        assert "a task before it is missing" in said


def test_tasks_of_other_lists_are_told_apart(desk, tasks, done):
    desk.add(tasks(300))  # indices whose bytes hold a NUL
    desk.add([Task("e", "workshop", 0)], "eval", "step-0")
    desk.put(desk.lease().group_id, done())
    assert verify(desk.store) == []
    key = b"eval\0step-0\0" + u64(0)
    wrong = codec.encode(Task("other", "workshop", 0))
    assert "table task_id: 1 missing" in _problems(desk, lambda txn: txn.put("task", key, wrong))


def test_records_of_a_damaged_file_are_not_read(filled, monkeypatch):
    def never(*_: object) -> None:
        raise AssertionError("LMDB was asked for what its file may not hold")

    monkeypatch.setattr("buffer.tools.verify.lmdb_verify.verify", lambda folder: ["page 7 is torn"])
    monkeypatch.setattr("buffer.tools.verify._group_problems", never)
    page, unread = verify(filled.store)
    assert page == "page 7 is torn" and "not checked" in unread


def test_a_row_that_breaks_the_rule_of_its_state_is_found(filled):
    row = filled.row("g0000000001")
    said = _problems(filled, lambda txn: txn.put_row(row.with_changes(steps=())))
    assert "is trained only if " in said


def test_a_state_changes_only_in_fields_that_it_has(filled):
    row = filled.row("g0000000001")
    assert row.with_changes(actor="b").actor == "b"
    with pytest.raises(TypeError, match="actr"):
        row.with_changes(actr="b")
