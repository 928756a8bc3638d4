"""Power loss: a store that stops at any moment has everything that was acknowledged by then.

What a machine keeps is played out from a record of the service's writes (power.py). The same
test must find fault with a store that does not sync.
"""

import faulthandler
import json
import os
import random
import threading
import time
from contextlib import suppress

import pytest
from lmdb import verify as lmdb_verify

from buffer import BufferClient, Lease
from buffer.indexes.index import Index
from buffer.storage.store import Store
from buffer.storage.transaction import read_group
from buffer.tools.verify import verify
from r3l.errors import R3LError
from r3l.records import GroupPlan
from r3l.run.settings.buffer import BufferConfig
from tests.buffer.stress import power

pytestmark = pytest.mark.system

OPTIONS = ("learner.groups_per_step=4", "buffer.max_staleness=50", "buffer.retention.groups=30")
MUTANTS = {
    "sync": "import lmdb; o = lmdb.open; lmdb.open = lambda *a, **k: o(*a, sync=False, **k)",
    "metasync": "import lmdb; o = lmdb.open; lmdb.open = lambda *a, **k: o(*a, metasync=0, **k)",
}


class Recorded:
    """Two actors and a learner at work with a recorded service, and when it acknowledged what."""

    def __init__(self, endpoint, done, chance):
        self.endpoint, self.done, self.chance = endpoint, done, chance
        self.slots, self.steps, self.errors = [], [], []
        self.version = 0

    def act(self, name, puts):
        with BufferClient(self.endpoint, timeout_s=60) as client:
            while len(self.slots) < puts or self.version < 3:
                lease = client.lease(name, self.version, GroupPlan(2))
                for slot in range(2 if isinstance(lease, Lease) else 0):
                    length = self.chance.choice((8, 300, 4000, 20_000))
                    result = self.done(slot, version=self.version, length=length)
                    client.put(lease.group_id, name, result)
                    self.slots.append((time.monotonic(), lease.group_id, slot, length))

    def learn(self, puts):
        with BufferClient(self.endpoint, timeout_s=60) as client:
            while len(self.slots) < puts or self.version < 3:
                draw = client.draw(4, self.version, wait_s=0.2)
                if draw is not None:
                    client.commit(draw.draw_id, self.version + 1, self.version + 1)
                    self.version += 1
                    groups = tuple(group.group_id for group in draw.groups)
                    self.steps.append((time.monotonic(), self.version, groups))

    def _guarded(self, work, *arguments):
        try:
            work(*arguments)
        except Exception as error:
            self.errors.append(error)

    def run(self, puts):
        work = [(self.act, "a", puts), (self.act, "b", puts), (self.learn, puts)]
        threads = [threading.Thread(target=self._guarded, args=args, daemon=True) for args in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.errors


def problems(folder, image, run):
    """What is wrong with a store made of an image, looked at by a process of its own: LMDB reads
    what it trusts, and who reads beyond the end of a file is killed (SIGBUS)."""
    theirs, ours = os.pipe()
    if (child := os.fork()) == 0:
        faulthandler.disable()  # it may be killed, which is no fault
        with suppress(BaseException), open(ours, "w") as file:
            json.dump(_problems(folder, image, run), file)
        os._exit(0)
    os.close(ours)
    with open(theirs) as file:
        found = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(found) if found else [f"who read it ended with status {status}"]


def _problems(folder, image, run):
    folder.mkdir()
    (folder / "data.mdb").write_bytes(image.data)
    if torn := _torn(folder):
        return torn
    try:
        store = Store(folder, map_gib=1)
    except R3LError as error:
        return [str(error)]
    try:
        return verify(store) + list(_lost(store, image.when, run))
    except Exception as error:
        return [repr(error)]
    finally:
        store.close()


def _torn(folder):
    """What is wrong with the file itself."""
    try:
        return [str(problem) for problem in lmdb_verify.verify(str(folder))]
    except (lmdb_verify.VerifyError, OSError) as error:
        return [str(error)]


def _lost(store, when, run):
    with store.read() as txn:
        for acked, group_id, slot, length in run.slots:
            if acked < when and not txn.evicted(group_id):
                row = txn.row(group_id)
                if row is None:
                    yield f"{group_id}: lost"
                    continue
                group = read_group(txn.group_bytes(row), row)
                found = [r for r in group.results if r.slot == slot]
                if not found or len(found[0].trajectory.token_ids) != length:
                    yield f"{group_id}: slot {slot} is lost"
        for acked, step, groups in run.steps:
            line = txn.step(step)
            if acked < when and (line is None or line.groups != groups):
                yield f"step {step}: lost"
    index = Index.load(store, BufferConfig())
    assert index.next_group > 0


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    library = power.build_recorder(tmp_path_factory.mktemp("recorder"))
    if library is None:
        pytest.skip("there is no C compiler to build the recorder with")
    return library


def _play(serve, recorder, tmp_path, done, tasks, puts, count, change=""):
    """The problems of each image of a recorded run."""
    chance = random.Random(puts)
    trace = tmp_path / "trace"
    served = serve(
        "tcp://127.0.0.1:0",
        *OPTIONS,
        "buffer.retention.grace_s=0",
        change=change,
        env=power.recording(recorder, trace),
    )
    began = time.monotonic()
    run = Recorded(served.endpoint, done, chance)
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(50))
    run.run(puts)
    served.kill()
    events = power.read_trace(trace)
    trace.unlink()
    shown = f"{len(events)} events, {len(run.slots)} puts, {len(run.steps)} steps"
    found = [
        problems(tmp_path / f"image-{number}", image, run)
        for number, image in enumerate(power.images(events, count, chance, began))
    ]
    assert len(found) == count, shown
    print(f"power loss: {count} images of {shown}; {sum(map(bool, found))} with problems")
    return found


def test_every_acknowledged_result_survives_a_power_loss_at_any_moment(
    serve, recorder, tmp_path, done, tasks, soak
):
    puts, count = (1200, 250) if soak else (120, 20)
    found = _play(serve, recorder, tmp_path, done, tasks, puts, count)
    assert [problem for image in found for problem in image] == []


@pytest.mark.parametrize("setting", MUTANTS)
def test_a_store_that_does_not_sync_fails_this_check(
    serve, recorder, tmp_path, done, tasks, setting, soak
):
    if setting == "metasync" and not soak:
        pytest.skip("loses only last commits, which takes many images to see: make soak")
    found = _play(serve, recorder, tmp_path, done, tasks, 100, 60, change=MUTANTS[setting])
    assert any(found)
