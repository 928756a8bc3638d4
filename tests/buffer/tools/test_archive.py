"""A store written out and in again is the same store, and others can read what was written."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from buffer import cli
from buffer.storage.store import Store
from buffer.tools import archive, jsonl, verify
from r3l.errors import SchemaVersionError, UserError


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_export_import_export_gives_the_same_files(filled, tmp_path):
    rows = archive.export(filled.store, tmp_path / "out")
    assert (rows["groups"], rows["draws"], rows["ledger"], rows["tasks"]) == (4, 1, 1, 3)
    copy = Store(tmp_path / "copy", map_gib=0.25)
    assert archive.restore(tmp_path / "out", copy) == rows
    archive.export(copy, tmp_path / "again")
    assert _files(tmp_path / "again") == _files(tmp_path / "out")
    assert verify.verify(copy) == []
    copy.close()


def test_an_imported_store_continues_where_the_exported_one_was(filled, tmp_path, done):
    archive.export(filled.store, tmp_path / "out")
    before = vars(filled.index) | {"last_seen": {}}  # of a service's own time
    filled.store.close()
    filled.folder = tmp_path / "copy"
    filled.open()
    archive.restore(tmp_path / "out", filled.store)
    filled.reopen()
    assert vars(filled.index) == before
    (half,) = (e.group_id for e in filled.index.live.values() if e.state == "filling")
    assert filled.put(half, done("base", 1, version=1)).complete


def test_evicted_groups_stay_evicted(filled, tmp_path):
    filled.do(_evict_all)
    assert archive.export(filled.store, tmp_path / "out")["tombs"] == 3
    copy = Store(tmp_path / "copy", map_gib=0.25)
    archive.restore(tmp_path / "out", copy)
    archive.export(copy, tmp_path / "again")
    copy.close()
    assert _files(tmp_path / "again") == _files(tmp_path / "out")


def _evict_all(work):
    for row in list(work.txn.rows()):
        if row.closed:
            work.evict(row)


def test_a_damaged_or_foreign_export_is_refused_before_anything_is_made(filled, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"manifest\.json"):
        archive.check(tmp_path)
    archive.export(filled.store, out)
    with pytest.raises(UserError, match="not empty"):
        archive.export(filled.store, out)
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


def test_rewards_of_a_group_that_differ_from_its_attempts_are_not_imported(filled, tmp_path):
    out = tmp_path / "out"
    archive.export(filled.store, out)
    states = (out / "states.jsonl").read_text()
    (out / "states.jsonl").write_text(states.replace("0.30000000000000004", "1e300"))
    _sign(out)
    copy = Store(tmp_path / "copy", map_gib=0.25)
    with pytest.raises(UserError, match="tables states and groups differ"):
        archive.restore(out, copy)
    copy.close()


@pytest.mark.parametrize("kind", ["elsewhere", "link", "pipe"])
def test_import_reads_only_regular_files_of_its_folder(filled, tmp_path, kind):
    out, other = tmp_path / "out", tmp_path / "other"
    archive.export(filled.store, out)
    (out / "tasks.jsonl").rename(other)
    expected = r"tasks\.jsonl must be a regular file; copy the whole folder$"
    if kind == "elsewhere":
        manifest = (out / "manifest.json").read_text().replace("tasks.jsonl", "../other")
        (out / "manifest.json").write_text(manifest)
        expected = r"table tasks has file '\.\./other'; must be tasks\.jsonl\)$"
    elif kind == "link":
        (out / "tasks.jsonl").symlink_to(other)
    else:
        os.mkfifo(out / "tasks.jsonl")  # would be waited for without end
    with pytest.raises(UserError, match=expected):
        archive.check(out)


def _sign(folder: Path) -> None:
    """Write a manifest that fits the files."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for file in manifest["tables"].values():
        file["sha256"] = hashlib.sha256((folder / file["file"]).read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_an_interrupted_export_or_import_leaves_nothing(filled, tmp_path, monkeypatch):
    def full(path, records):
        path.write_text("half of it")
        raise OSError(28, "No space left on device")

    out, new = tmp_path / "out", tmp_path / "new"
    with monkeypatch.context() as patch:
        patch.setattr(jsonl, "write", full)
        with pytest.raises(UserError, match="No space"):
            archive.export(filled.store, out)
    archive.export(filled.store, out)
    arguments = ["import", "--store", str(new), str(out)]
    with monkeypatch.context() as patch:
        drops = archive.TABLES["drops"]
        fails = drops._replace(write=lambda txn, row: full(tmp_path / "x", None))
        patch.setitem(archive.TABLES, "drops", fails)
        assert isinstance(CliRunner().invoke(cli.commands, arguments).exception, UserError)
    assert {path.name for path in tmp_path.iterdir()} == {"store", "out", "x"}
    assert CliRunner().invoke(cli.commands, arguments).exit_code == 0
    again = CliRunner().invoke(cli.commands, arguments).exception
    assert isinstance(again, UserError) and "is not empty" in str(again)
