"""No flipped bit of a store is believed, whatever table, key or page it is in."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from buffer import cli
from buffer.storage import value_checksums
from buffer.storage.layout import TABLES
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l.errors import StoreError
from r3l.records import GroupPlan
from tests.buffer.fakes import thought


@pytest.fixture
def filled(desk, tasks, done):
    """Something in every table: trained, complete and unfinished groups, an evicted one."""
    desk.add(tasks(30))
    for version in range(5):
        for _ in range(2):
            group = desk.lease(version=version, plan=GroupPlan(2)).group_id
            results = [done(slot, version=version, reward=slot) for slot in (0, 1)]
            desk.put(group, results, fingerprint=(version, "abc"))
        if version < 4:
            desk.commit(desk.draw(2, version).draw_id, version + 1)
    half = desk.lease(version=4, plan=GroupPlan(3)).group_id
    desk.put(half, [done(1, version=4), thought(version=4)])
    desk.resolve(half, 0, "env")
    desk.put_partial(half, done(2, version=4))
    return desk


def damage(store: Store, table: str, key: bytes, change=lambda stored: stored[:-1] + b"?") -> None:
    with store.write() as txn:
        raw, db = txn._raw, txn._tables[table]
        raw.put(key, change(raw.get(key, db=db)), db=db)


def test_a_value_under_another_key_or_table_is_not_believed() -> None:
    stored = value_checksums.add("state", b"g1", b"value")
    assert value_checksums.remove("state", b"g1", stored) == b"value"
    for table, key, data in (
        ("state", b"g2", stored),
        ("draw", b"g1", stored),
        ("state", b"g1", b"Value" + stored[5:]),
        ("state", b"g1", stored[1:]),
        ("state", b"g1", b""),
    ):
        with pytest.raises(StoreError, match="checksum mismatch"):
            value_checksums.remove(table, key, data)


def test_no_flipped_bit_of_the_file_goes_unseen(filled, tmp_path, soak) -> None:
    filled.store.copy(tmp_path / "copy")
    with filled.store.read() as txn:
        assert {name for name in TABLES if txn.size(name)} >= set(TABLES) - {"tomb"}
    number = 5000 if soak else 200
    program = [sys.executable, str(Path(__file__).parent / "flips.py")]
    made = subprocess.run(
        [*program, str(tmp_path / "copy"), str(tmp_path / "work"), str(number), "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-2000:]
    said = json.loads(made.stdout)
    assert said["unseen"] == [] and said["named"] > number // 10, said


@pytest.mark.parametrize("table", TABLES)
def test_damage_in_any_table_is_named_by_verify(filled, table: str) -> None:
    with filled.store.read() as txn:
        keys = [key for key in txn.keys(table) if key != b"schema"]
    if not keys:
        pytest.skip(f"nothing in table {table}")
    damage(filled.store, table, keys[-1])
    problems = verify(filled.store)
    assert problems and problems[0].startswith(f"table {table}, key {keys[-1]!r}")


def test_a_damaged_key_that_is_no_text_is_named_by_verify(filled) -> None:
    with filled.store.write() as txn:
        txn.put("part", b"g\x93", b"")
    assert any(line.startswith("g\\x93: is in table part") for line in verify(filled.store))


def test_a_damaged_record_is_never_drawn_and_its_group_expires(filled) -> None:
    first, _ = (row.group_id for row in filled.index.drawable.fresh)
    damage(filled.store, "group", first.encode())
    assert "1 of 2 groups are ready" in filled.shortage(2, 4)
    assert (filled.row(first).state, filled.row(first).cause) == ("expired", "damaged")
    assert filled.index.counts["drop/group/damaged"] == 1


def test_a_store_with_a_damaged_row_is_not_served_and_says_why(filled) -> None:
    damage(filled.store, "sys", b"progress")
    filled.store.close()
    result = CliRunner().invoke(cli.main, ["verify", str(filled.folder)])
    assert result.exit_code == 1 and "table sys, key b'progress'" in result.output
    with pytest.raises(StoreError, match="table sys, key b'progress'"):
        filled.open()


def test_an_empty_file_is_not_taken_for_a_new_store(tmp_path) -> None:
    folder = tmp_path / "store"
    Store(folder).close()
    (folder / "data.mdb").write_bytes(b"")
    for read_only in (False, True):
        with pytest.raises(Exception, match=r"data\.mdb is empty"):
            Store(folder, read_only=read_only)


def test_a_new_store_is_whole_or_not_there(tmp_path) -> None:
    folder = tmp_path / "store"
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "data.mdb").write_bytes(b"half of a page")  # as a crash leaves it
    store = Store(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["data.mdb", "lock.mdb", "owner.lock"]
    assert verify(store) == []
    store.close()
