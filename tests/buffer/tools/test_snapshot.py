"""A copy made while the service works is one moment of the store, whole."""

import os
import subprocess
import sys
import threading

import pytest

from buffer import BufferClient
from buffer.storage.store import Store
from buffer.tools import offline
from buffer.tools.verify import verify
from r3l.errors import StoreError, UserError
from r3l.records import GroupPlan

pytestmark = pytest.mark.system

OPTIONS = ("learner.groups_per_step=4", "buffer.max_staleness=500")


class Work:
    """Puts and commits without end; `acked`: groups that were acknowledged."""

    def __init__(self, endpoint, done):
        self.endpoint, self.done = endpoint, done
        self.over, self.acked, self.errors = threading.Event(), [], []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            with BufferClient(self.endpoint, timeout_s=60) as client:
                while not self.over.is_set():
                    for _ in range(4):
                        group = client.lease("a", 0, GroupPlan(1)).group_id
                        client.put(group, "a", self.done(length=3000))
                        self.acked.append(group)
                    draw = client.draw(4, 0)
                    client.commit(draw.draw_id, len(self.acked) // 4, 0)
        except Exception as error:
            self.errors.append(error)

    def wait_for(self, groups):
        while len(self.acked) < groups and not self.errors:
            self.over.wait(0.01)


def _compact(folder, target):
    command = [sys.executable, "-m", "buffer.cli", "compact", "--store", str(folder), str(target)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def test_a_copy_made_under_load_has_all_that_was_acknowledged_and_is_of_one_moment(
    serve, tasks, done, tmp_path
):
    served = serve("tcp://127.0.0.1:0", *OPTIONS)
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(9))
    work = Work(served.endpoint, done)
    for number in range(3):
        work.wait_for(8 * (number + 1))
        before = list(work.acked)
        _compact(served.folder, tmp_path / f"copy-{number}")
        copy = Store(tmp_path / f"copy-{number}", read_only=True)
        rows = list(offline.rows(copy))
        assert [row["group"] for row in rows] == [f"g{i + 1:010d}" for i in range(len(rows))]
        assert len(rows) >= len(before) and verify(copy) == []
        assert copy.disk_bytes <= 1.3 * sum(row["bytes"] for row in rows) + (1 << 20)
        copy.close()
    work.over.set()
    work.thread.join()
    assert not work.errors


def test_an_interrupted_copy_leaves_no_folder_that_looks_whole(desk, tasks, tmp_path, monkeypatch):
    desk.add(tasks(1))
    target = tmp_path / "copy"
    (tmp_path / "copy.partial").mkdir()
    (tmp_path / "copy.partial" / "data.mdb").write_text("half of it")

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
