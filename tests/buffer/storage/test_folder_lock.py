"""Who owns a folder or a socket, and where neither may be."""

import os
from types import SimpleNamespace

import pytest

from buffer.storage import folder_lock
from buffer.storage.store import Store
from r3l.errors import UserError


def test_a_second_owner_is_refused_with_the_process_of_the_first(tmp_path):
    first = Store(tmp_path, map_gib=0.01)
    with pytest.raises(UserError, match=f"process {os.getpid()}"):
        Store(tmp_path, map_gib=0.01)
    first.close()
    Store(tmp_path, map_gib=0.01).close()


def test_a_network_file_system_is_refused(tmp_path, monkeypatch):
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4")]
    mounts.insert(0, SimpleNamespace(mountpoint=str(tmp_path), fstype="nfs4"))
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    with pytest.raises(UserError, match="nfs4"):
        folder_lock.refuse_remote(tmp_path / "store")
    folder_lock.refuse_remote(tmp_path.parent)


def test_an_owner_writes_its_process_over_the_last_one_or_is_refused(tmp_path, monkeypatch):
    tmp_path.joinpath("owner.lock").write_text("4000000, a longer name")
    Store(tmp_path, map_gib=0.01).close()
    assert tmp_path.joinpath("owner.lock").read_text() == f"{os.getpid()}\n"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    for _ in range(2):  # the lock is given back
        with pytest.raises(UserError, match=r"cannot be used \(No space"):
            Store(tmp_path, map_gib=0.01)
