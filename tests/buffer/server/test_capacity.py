"""A full disk and a full map: results are refused by name, all else continues, nothing is lost."""

import subprocess
from pathlib import Path

import pytest

from buffer import BufferClient, Wait
from buffer.indexes.index import Index
from buffer.server.capacity import Capacity
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l.errors import StoreError
from r3l.records import GroupPlan
from tests.buffer.fakes import until

pytestmark = pytest.mark.system

OPTIONS = ("learner.groups_per_step=60", "buffer.max_staleness=2", "buffer.lease_s=600")
LARGE = 65_536  # tokens: about 600 kB a group


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 96 MiB, of which a service keeps 64 free."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "r3l-test", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def _ballast(place, size):
    path = place / "ballast"
    with path.open("wb") as file:
        try:
            while size > 0:
                size -= file.write(bytes(min(size, 1 << 20)))
                file.flush()
        except OSError:
            pass  # the disk is full, which was the aim
    return path


def _fill(client, done, leased):
    """Put groups until one is refused: those that were taken, and why the next was not."""
    for number, group in enumerate(leased):
        try:
            client.put(group, "a", done(length=LARGE))
        except StoreError as error:
            return leased[:number], error
    raise AssertionError("it never was full")


def _leased(client):
    return [client.lease("a", 0, GroupPlan(1)).group_id for _ in range(60)]


def _goes_on(client, taken, step):
    """Reads, draws and commits work."""
    assert len(client.get(taken)) == len(taken)
    draw = client.draw(2, 0)
    client.commit(draw.draw_id, step, 0)
    assert client.ledger(step) == draw.row.groups == tuple(taken[:2])


def test_a_full_disk_refuses_only_results_until_there_is_space(serve, small_disk, tasks, done):
    ballast = _ballast(small_disk, 20 << 20)
    served = serve("tcp://127.0.0.1:0", *OPTIONS, folder=small_disk / "store")
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(9))
        leased = _leased(client)
        taken, error = _fill(client, done, leased)
        refused = leased[len(taken)]
        said = Path(f"{served.folder}.log").read_text()
        assert said.count("r3l-notice: new results are refused") == 1
        assert "disk" in str(error) and error.cause == "full"
        waiting = client.lease("b", 0, GroupPlan(1))
        assert isinstance(waiting, Wait) and "full" in waiting.reason
        _goes_on(client, taken, 1)
        _ballast(small_disk, 200 << 20)  # not a byte is left
        assert len(client.get(taken)) == len(taken)
        with pytest.raises(StoreError):
            client.put(refused, "a", done(length=LARGE))
        ballast.unlink()
        assert client.put(refused, "a", done(length=LARGE)).complete
        assert client.lease("b", 0, GroupPlan(1)).group_id > leased[-1]
        assert served.stop() == 0
    store = Store(served.folder, read_only=True)
    assert verify(store) == []
    store.close()


def test_a_commit_without_disk_space_fails_by_name_and_changes_nothing(
    make_desk, small_disk, tasks, done
):
    desk = make_desk(groups_per_step=100)
    desk.add(tasks(9))
    desk.store.close()
    desk.folder = small_disk / "store"
    desk.open()
    desk.add(tasks(9))
    leased = [desk.lease().group_id for _ in range(30)]
    ballast = _ballast(small_disk, 85 << 20)
    taken = []
    with pytest.raises(StoreError, match="commit"):
        for group in leased:
            desk.put(group, done(length=LARGE))
            taken.append(group)
    desk.index = Index.load(desk.store, desk.config.buffer)
    assert taken and {row.group_id for row in desk.index.drawable.fresh} == set(taken)
    ballast.unlink()
    assert desk.put(leased[len(taken)], done(length=LARGE)).complete
    assert verify(desk.store) == []


def test_a_full_map_refuses_only_results_until_groups_are_evicted(serve, tasks, done):
    small = (f"buffer.map_gib={16 / 1024}", "buffer.retention.grace_s=0")
    served = serve("tcp://127.0.0.1:0", *OPTIONS, *small)
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(9))
        leased = _leased(client)
        taken, error = _fill(client, done, leased)
        rest = leased[len(taken) :]
        assert "map" in str(error)
        _goes_on(client, taken, 1)
    assert served.stop() == 0
    served = serve("tcp://127.0.0.1:0", *OPTIONS, *small, "buffer.retention.groups=0")
    with BufferClient(served.endpoint) as client:
        until(lambda: client.stats().evicted == 2)
        again, error = _fill(client, done, rest)
        assert 1 <= len(again) <= 2 and "map" in str(error)
        assert len(client.get([*taken[2:], *again])) == len(taken) - 2 + len(again)
        assert served.stop() == 0
    store = Store(served.folder, read_only=True)
    assert verify(store) == []
    store.close()


def test_a_nearly_full_map_accepts_results_after_an_eviction(tmp_path):
    store = Store(tmp_path, map_gib=1 / 1024)
    capacity = Capacity(store, floor=0)
    assert capacity.refusal(held=0) == ""
    with store.write() as txn:
        txn.put("group", b"g", bytes(1_000_000))
    assert "map" in capacity.refusal(held=500)
    assert capacity.refusal(held=400) == "" and "map" in capacity.refusal(held=500)
    store.close()
