"""A store written out and in again is the same store, and others can read what was written."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from buffer import cli
from buffer.storage.store import Store
from buffer.tools import archive, jsonl, verify
from r3l.errors import SchemaVersionError, StoreError, UserError
from r3l.records import AuxSample, GroupPlan, ReflectionRecord, SlotResult, Task, Trajectory
from tests.buffer.conftest import _done


@pytest.fixture
def filled(desk, done):
    """A store with something in every table and every field that is easily lost."""
    odd = {"nested": [1, 2.5, None, {"a": True}], "text": 'ü\n"'}
    desk.add([Task("t0", "workshop", 1, odd), Task("t1", "workshop", -(1 << 40))])
    desk.add([Task("e0", "workshop", 0)], "eval", "step-0", min_version=9)
    for _ in range(2):
        desk.put(desk.lease().group_id, done(reward=0.1 + 0.2), fingerprint=(0, "abc"))
    desk.commit(desk.draw(2).draw_id, 1)
    failed = desk.lease(version=1).group_id
    desk.resolve(failed, "base", 0, "env")
    half = desk.lease(version=1, plan=GroupPlan(2, 1)).group_id
    desk.put(half, [done(version=1), _reflected()])
    return desk


def _reflected():
    mask = np.array([False, True])
    return SlotResult(
        "distilled", 0, "not_triggered",
        reflection=ReflectionRecord("{}", "no_json", tokens=3, seconds=0.25),
        aux=(AuxSample("reflect", np.array([1, -2], np.int32), mask),),
    )  # fmt: skip


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_export_import_export_gives_the_same_files(filled, tmp_path, form):
    rows = archive.export(filled.store, tmp_path / "out", form)
    assert (rows["groups"], rows["draws"], rows["ledger"], rows["tasks"]) == (4, 1, 1, 3)
    copy = Store(tmp_path / "copy", map_gib=0.25)
    assert archive.restore(tmp_path / "out", copy) == rows
    archive.export(copy, tmp_path / "again", form)
    assert _files(tmp_path / "again") == _files(tmp_path / "out")
    assert verify.verify(copy) == []
    copy.close()


def test_an_imported_store_goes_on_where_the_exported_one_was(filled, tmp_path, done):
    archive.export(filled.store, tmp_path / "out", "jsonl")
    before = vars(filled.index) | {"last_seen": {}}  # of a service's own time
    filled.store.close()
    filled.folder = tmp_path / "copy"
    filled.open()
    archive.restore(tmp_path / "out", filled.store)
    filled.reopen()
    assert vars(filled.index) == before
    (half,) = (e.group_id for e in filled.index.live.values() if e.state == "filling")
    assert filled.put(half, done("base", 1, version=1)).complete


def test_both_formats_hold_the_same_and_tell_of_evicted_groups(filled, tmp_path):
    filled.do(_evict_all)
    for form in ("jsonl", "parquet"):
        assert archive.export(filled.store, tmp_path / form, form)["tombs"] == 3
        copy = Store(tmp_path / f"copy-{form}", map_gib=0.25)
        archive.restore(tmp_path / form, copy)
        archive.export(copy, tmp_path / f"{form}-as-jsonl", "jsonl")
        copy.close()
    assert _files(tmp_path / "jsonl-as-jsonl") == _files(tmp_path / "parquet-as-jsonl")


def _evict_all(work):
    for row in list(work.txn.rows()):
        if row.closed:
            work.evict(row)


def test_json_lines_are_read_with_nothing_but_json(filled, tmp_path):
    archive.export(filled.store, tmp_path / "out", "jsonl")
    lines = (tmp_path / "out" / "groups.jsonl").read_text().splitlines()
    groups = [json.loads(line) for line in lines]
    assert [group["state"] for group in groups] == ["trained", "trained", "expired", "filling"]
    trajectory = groups[0]["results"][0]["trajectory"]
    assert trajectory["token_ids"] == list(range(8)) and trajectory["reward"] == 0.1 + 0.2


def test_parquet_is_read_with_nothing_but_pyarrow(filled, tmp_path):
    import pyarrow.parquet as pq

    archive.export(filled.store, tmp_path / "out", "parquet")
    groups = pq.read_table(tmp_path / "out" / "groups.parquet")
    assert groups["state"].to_pylist() == ["trained", "trained", "expired", "filling"]
    trajectory = groups["results"][0].as_py()[0]["trajectory"]
    assert trajectory["step_spans"] == [[2, 8]] and trajectory["token_ids"] == list(range(8))
    assert str(groups.schema.field("results").type).count("float") >= 2


def test_a_damaged_or_foreign_export_is_refused_before_anything_is_made(filled, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"manifest\.json"):
        archive.check(tmp_path)
    archive.export(filled.store, out, "jsonl")
    with pytest.raises(UserError, match="not empty"):
        archive.export(filled.store, out, "jsonl")
    with pytest.raises(UserError, match="not empty"):
        archive.restore(out, filled.store)
    manifest = (out / "manifest.json").read_text()
    newer = json.loads(manifest) | {"schema": 99}
    (out / "manifest.json").write_text(json.dumps(newer))
    with pytest.raises(SchemaVersionError, match="99"):
        archive.check(out)
    (out / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=r"manifest\.json is not valid"):
        archive.check(out)
    (out / "manifest.json").write_text(manifest)
    with (out / "groups.jsonl").open("a") as file:
        file.write("{}\n")
    result = CliRunner().invoke(cli.commands, ["import", "--store", str(tmp_path / "x"), str(out)])
    assert isinstance(result.exception, UserError) and "groups.jsonl" in str(result.exception)
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_written_out_or_in_to_its_end_leaves_nothing(filled, tmp_path, monkeypatch):
    def full(path, kind, records):
        path.write_text("half of it")
        raise OSError(28, "No space left on device")

    out, new = tmp_path / "out", tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "write", full)
        with pytest.raises(StoreError, match="No space"):
            archive.export(filled.store, out, "jsonl")
    archive.export(filled.store, out, "jsonl")
    arguments = ["import", "--store", str(new), str(out)]
    with monkeypatch.context() as patch:
        drops = archive.TABLES["drops"]
        fails = drops._replace(write=lambda txn, row: full(tmp_path / "x", None, None))
        patch.setitem(archive.TABLES, "drops", fails)
        assert isinstance(CliRunner().invoke(cli.commands, arguments).exception, OSError)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "out", "x"}
    assert CliRunner().invoke(cli.commands, arguments).exit_code == 0
    again = CliRunner().invoke(cli.commands, arguments).exception
    assert isinstance(again, UserError) and "is not empty" in str(again)


LINES = {
    "another type": '{"purpose": "train", "tag": 5}',
    "too large a number": '{"kind": "reflect", "token_ids": [1099511627776], "response_mask": []}',
    "no number": '{"kind": "reflect", "token_ids": ["0x0"], "response_mask": [true]}',
    "a list": "[]",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    (tmp_path / "x.jsonl").write_text(LINES[line] + "\n")
    for kind in (archive.TaskRow, AuxSample):
        with pytest.raises(UserError, match="line 1"):
            list(jsonl.read(tmp_path / "x.jsonl", kind))


def test_numbers_that_json_does_not_have_come_back_bit_by_bit(tmp_path):
    bits = np.array([0x7FC01234, 0xFF800000, 0x80000000, 1, 0x3F800000], np.uint32)
    written = replace(_done(length=5).trajectory, logprobs=bits.view(np.float32))
    jsonl.write(tmp_path / "x.jsonl", Trajectory, [written])
    line = json.loads((tmp_path / "x.jsonl").read_text(), parse_constant=pytest.fail)
    assert line["logprobs"][:2] == ["0x7fc01234", "0xff800000"] and line["logprobs"][4] == 1.0
    (read,) = jsonl.read(tmp_path / "x.jsonl", Trajectory)
    assert read.logprobs.tobytes() == bits.tobytes()
    for text in ("0x1000000000", "nan", "-0x1"):
        line["logprobs"][0] = text
        (tmp_path / "x.jsonl").write_text(json.dumps(line))
        with pytest.raises(UserError, match="line 1"):
            list(jsonl.read(tmp_path / "x.jsonl", Trajectory))


@pytest.mark.parametrize("form", ["--jsonl", "--parquet"])
def test_the_commands_export_and_import(filled, tmp_path, form):
    filled.store.copy(tmp_path / "snapshot")

    def run(*arguments):
        result = CliRunner().invoke(cli.commands, list(map(str, arguments)), catch_exceptions=False)
        assert result.exit_code == 0
        return json.loads(result.output)

    rows = run("export", "--store", tmp_path / "snapshot", tmp_path / "out", form)
    assert rows["groups"] == 4
    new = ("--store", tmp_path / "new")
    assert run("import", *new, tmp_path / "out") == rows
