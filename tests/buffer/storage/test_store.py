"""The store: who may open it, where, and what it does when it cannot write."""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack

import lmdb
import pytest
from lmdb import verify

from buffer.storage.store import Store
from r3l.errors import StoreError, UserError
from r3l.run.settings.buffer import RetentionConfig


def test_a_file_of_another_lmdb_is_refused(tmp_path):
    import lmdb

    lmdb.open(str(tmp_path), lib_version=1).close()
    with pytest.raises(UserError, match="cannot be opened"):
        Store(tmp_path, map_gib=0.01)


def test_a_folder_without_a_store_cannot_be_opened_for_reading(tmp_path):
    with pytest.raises(UserError, match="no store there"):
        Store(tmp_path, read_only=True)


def test_a_file_that_is_not_a_store_is_refused(tmp_path):
    (tmp_path / "data.mdb").write_bytes(b"something else" * 1000)
    with pytest.raises(UserError, match="cannot be opened"):
        Store(tmp_path, map_gib=0.01)


def test_a_store_is_opened_with_settings_that_survive_power_loss(desk):
    flags = desk.store._env.flags()
    assert flags["sync"] and flags["metasync"] and not flags["writemap"] and not flags["map_async"]
    assert not flags["readahead"]


def test_a_full_store_refuses_results_and_keeps_the_accepted_ones(make_desk, tasks, done):
    desk = make_desk(groups_per_step=1000)
    desk.add(tasks(1))
    groups = [desk.lease().group_id for _ in range(20)]
    desk.store.close()
    desk.store = Store(desk.folder, map_gib=2 / 1024)
    accepted = []
    with pytest.raises(StoreError):
        for group in groups:
            desk.put(group, done(length=50_000))
            accepted.append(group)
    desk.reopen()
    assert accepted and {e.group_id for e in desk.index.drawable.fresh} == set(accepted)
    assert desk.put(groups[len(accepted)], done(length=50_000)).complete


def test_a_map_smaller_than_the_store_is_refused_and_a_full_one_says_what_to_do(
    make_desk, tasks, done
):
    desk = make_desk(groups_per_step=1000)
    desk.add(tasks(1))
    for _ in range(5):
        desk.put(desk.lease().group_id, done(length=50_000))
    desk.store.close()
    with pytest.raises(UserError, match=r"0\.0\d+ GiB.* buffer.map_gib is 0.001"):
        Store(desk.folder, map_gib=0.001)
    desk.store = Store(desk.folder, map_gib=0.003)
    with pytest.raises(StoreError, match=r"used up; .*buffer\.map_gib"):
        for _ in range(5):
            desk.put(desk.lease().group_id, done(length=50_000))
    desk.store.close()
    desk.store = Store(desk.folder, map_gib=None)
    assert desk.store.map_bytes + 4096 > shutil.disk_usage(desk.folder).total


def test_a_copy_made_while_serving_is_a_whole_store(desk, tasks, tmp_path):
    desk.add(tasks(3))
    groups = [desk.complete() for _ in range(3)]
    desk.store.copy(tmp_path / "copy")
    with pytest.raises(UserError, match="not empty"):
        desk.store.copy(tmp_path / "copy")
    copied = Store(tmp_path / "copy", read_only=True)
    with copied.read() as txn:
        assert [e.group_id for e in txn.rows()] == groups
    copied.close()
    assert verify.verify(str(tmp_path / "copy")) == []


def test_a_copy_leaves_out_evicted_groups(desk, tasks, done, tmp_path):
    desk.add(tasks(3))
    for step in range(1, 5):
        for _ in range(2):
            version = desk.index.progress.version
            desk.put(desk.lease(version=version).group_id, done(version=version, length=50_000))
        desk.commit(desk.draw(2, version).draw_id, step)
    desk.evict(RetentionConfig(groups=1, grace_s=0.0))
    desk.store.copy(tmp_path / "copy")
    copied = Store(tmp_path / "copy", read_only=True)
    assert copied.disk_bytes < desk.store.disk_bytes / 4
    copied.close()


def test_a_read_only_store_cannot_be_written(desk):
    desk.store.close()
    store = Store(desk.folder, read_only=True)
    with pytest.raises(StoreError, match="Permission denied"), store.write():
        pass
    store.close()


def test_a_store_that_was_cut_off_is_refused(desk, tasks, tmp_path):
    desk.add(tasks(3))
    for _ in range(3):
        desk.complete()
    desk.store.copy(tmp_path / "copy")
    whole = (tmp_path / "copy" / "data.mdb").read_bytes()
    for number, size in enumerate((5000, 8192, len(whole) // 2, len(whole) - 1)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "data.mdb").write_bytes(whole[:size])
        for read_only in (True, False):
            with pytest.raises(UserError, match=f"{size} of its {len(whole)} bytes"):
                Store(folder, read_only=read_only)
        assert (folder / "data.mdb").read_bytes() == whole[:size]


def test_a_forked_child_cannot_write_to_the_store_of_its_parent(desk):
    desk.store._pid += 1
    with pytest.raises(StoreError, match="parent"), desk.store.write():
        pass


def test_a_folder_or_database_of_another_program_is_refused_and_left_alone(tmp_path):
    theirs = tmp_path / "images"
    with lmdb.open(str(theirs)) as env, env.begin(write=True) as txn:
        txn.put(b"image-001", b"...")
    for read_only in (True, False):
        with pytest.raises(UserError, match=r"another program's LMDB .*image-001"):
            Store(theirs, read_only=read_only)
    with lmdb.open(str(theirs)) as env, env.begin() as txn:
        assert [key for key, _ in txn.cursor()] == [b"image-001"]
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "diary.txt").write_text("dear diary")
    with pytest.raises(UserError, match=r"holds 'diary\.txt'"):
        Store(notes)
    assert [path.name for path in notes.iterdir()] == ["diary.txt"]


def test_an_interrupted_copy_leaves_no_folder_that_looks_whole(desk, tasks, tmp_path, monkeypatch):
    desk.add(tasks(1))
    target = tmp_path / "copy"
    (tmp_path / ".building-copy").mkdir()
    (tmp_path / ".building-copy" / "data.mdb").write_text("half of it")

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match="No space"):
            desk.store.copy(target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    desk.store.copy(target)
    assert sorted(path.name for path in target.iterdir()) == ["data.mdb"]
    with pytest.raises(UserError, match="not empty"):
        desk.store.copy(target)


HOLDS_ALL = """
import lmdb, sys, time
env = lmdb.open(sys.argv[1], readonly=True, max_readers=1024)
held = []
try:
    while True:
        held.append(env.begin())
except lmdb.ReadersFullError:
    print(len(held), flush=True)
time.sleep(600)
"""


def test_a_program_that_holds_all_readers_is_named_and_its_death_frees_them(tmp_path):
    Store(tmp_path / "buffer", map_gib=0.1).close()
    command = [sys.executable, "-c", HOLDS_ALL, str(tmp_path / "buffer")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as greedy:
        try:
            assert greedy.stdout is not None and int(greedy.stdout.readline()) > 100
            with pytest.raises(UserError, match=f"open: {greedy.pid};"):
                Store(tmp_path / "buffer", map_gib=0.1)
        finally:
            greedy.kill()
    Store(tmp_path / "buffer", map_gib=0.1).close()


def test_a_reader_of_a_store_without_a_place_says_who_holds_them_and_goes_on_later(tmp_path):
    with Store(tmp_path / "buffer", map_gib=0.1) as store:
        command = [sys.executable, "-c", HOLDS_ALL, str(tmp_path / "buffer")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as greedy, ExitStack() as held:
            try:
                assert greedy.stdout is not None and int(greedy.stdout.readline()) > 100
                with pytest.raises(StoreError, match=f"places .*{greedy.pid}.*; end one") as caught:
                    for _ in range(9):  # one may still be ours
                        held.enter_context(store.read())
                assert caught.value.cause == "readers"
            finally:
                greedy.kill()
        with store.read() as txn:
            assert txn.schema()


LOOKS = """
import lmdb, sys
view = lmdb.open(sys.argv[1], readonly=True).begin()
print("looking", flush=True)
sys.stdin.read()
"""


def test_a_read_transaction_of_a_killed_process_keeps_no_pages(desk):
    command = [sys.executable, "-c", LOOKS, str(desk.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"looking\n"
        assert desk.store.clear_readers() == 0
        other.kill()
    assert desk.store.clear_readers() == 1
