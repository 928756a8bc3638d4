"""Closed groups move to an archive, whole, and stay where they are if it fails."""

import time
from collections import Counter

import pytest

from buffer import BufferClient
from buffer.groups.unit_of_work import UnitOfWork
from buffer.indexes.index import Index
from buffer.server import archiver, lookups
from buffer.server.archiver import Archiver
from buffer.server.handlers import WriteHandlers
from buffer.storage import archive_files, counts
from buffer.storage.archive_files import Archive
from buffer.storage.store import Store
from buffer.storage.transaction import Txn
from buffer.tools import store_reads
from buffer.tools.finished_copy import copy_finished
from buffer.tools.verify import verify
from buffer.wire import messages, parts
from buffer.wire.operations import GetDrawn, GetGroups, QueryGroups
from r3l import codec
from r3l.errors import IllegalMove, StoreError
from r3l.records import AttemptKey, GroupPlan, Task
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import Served, calls, finished, thought

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'r3l[archive]'")
GRACE_S = 600.0


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Makes the archiver of a desk, which ends with the test. Small files are made at once."""
    monkeypatch.setattr(archiver, "WAIT_S", 0.0)
    running = []

    def make(desk, address=tmp_path / "archive"):
        running.append(Archiver(desk.store, Archive(str(address))))
        return running[-1]

    yield make
    for each in running:
        each.stop()


def tick(desk, archiving, until):
    """Ticks as the writer does until `until()` or a few seconds have passed."""
    for _ in range(500):
        desk.do(archiving.tick)
        if until():
            return
        time.sleep(0.02)
    raise AssertionError("the archiver did not get there")


def archived(desk):
    with desk.store.read() as txn:
        return [row.group_id for row in txn.rows() if row.archived]


def contents(store):
    """Every group as every reader gets it, and its record's bytes."""
    names = [row["group"] for row in store_reads.rows(store)]
    with store.read() as txn:
        return {name: txn.group_bytes(txn.existing_row(name)) for name in names}, [
            str(store_reads.group(store, name)) for name in names
        ]


def trained(desk, count=5):
    """Trains groups of two attempts and a reflection."""
    for step in range(1, count + 1):
        group = desk.lease(version=step - 1, plan=GroupPlan(2)).group_id
        desk.put(group, [thought(), finished(0, reward=1.0, length=4000)], fingerprint=(0, "abc"))
        desk.put(group, finished(1, length=4000))
        desk.commit(desk.draw(1, step - 1).draw_id, step)


@pytest.fixture
def desk(make_desk, tasks):
    """Five trained groups whose grace is over."""
    desk = make_desk(retention={"grace_s": GRACE_S}, max_staleness=9)
    desk.add(tasks(9))
    trained(desk)
    desk.now += GRACE_S + 1
    return desk


def test_closed_groups_move_after_the_grace_and_read_the_same_bytes(desk, made):
    waiting = desk.complete(5)
    before, archiving = contents(desk.store), made(desk)
    desk.now -= GRACE_S
    desk.do(archiving.tick)
    desk.do(archiving.tick)
    assert archived(desk) == []
    desk.now += GRACE_S
    archiving._next = 0.0
    tick(desk, archiving, lambda: archived(desk))
    assert archived(desk) == [f"g{n:010d}" for n in range(1, 6)]
    assert contents(desk.store) == before and verify(desk.store) == []
    with desk.store.read() as txn:
        assert [key.decode() for key in txn.keys("group")] == [waiting]
        assert txn.size("part") == 1 and txn.size("reflection") == 0
    kept = desk.index.counts
    assert kept["archived"] == 5 and kept["bytes"] == desk.row(waiting).nbytes
    assert len(store_reads.replay(desk.store, 3)[0]) == 1
    desk.reopen()
    assert contents(desk.store) == before


def test_archived_groups_come_in_parts_in_lists_and_in_their_draw(desk, made, monkeypatch):
    desk.complete(5)
    names, draw = [f"g{n:010d}" for n in range(1, 6)], 3
    everything, trained = QueryGroups(limit=9), QueryGroups("train", "", "trained", 9)

    def read():
        with desk.store.read() as txn:
            found = [
                lookups.groups(txn, GetGroups(names)),
                lookups.get_drawn(txn, GetDrawn(draw, 0)),
            ]
            found += [lookups.query(txn, each) for each in (everything, trained)]
            listed = list(txn.candidates("train", None, "trained"))
        return found, listed

    before, archiving = read(), made(desk)
    assert before[1] == names[::-1] and len(before[0][0][1]) == 5
    tick(desk, archiving, lambda: archived(desk))
    assert archived(desk) == names and read() == before
    monkeypatch.setattr(parts, "PART_BYTES", 1)
    monkeypatch.setattr(lookups, "PART_BYTES", 1)
    (groups, _, queried, _), _ = read()
    assert len(groups[0].now) == len(queried[0].now) == 1 and queried[0].before


def test_no_lease_waits_in_the_writer_for_the_archive(desk, made, monkeypatch):
    archiving, handlers = made(desk), WriteHandlers(desk.store, Counter())
    tick(desk, archiving, lambda: archived(desk))
    waiting = desk.complete(5)
    keys = (AttemptKey("g0000000001", 1), AttemptKey(waiting, 0), AttemptKey("g0000000099", 0))
    call = calls.lease("a", 5, GroupPlan(1, handed=keys))
    header, *rest = call.frames("r")
    request = messages.read_request(b"a", messages.read_header([header]), rest)
    with monkeypatch.context() as absent:
        absent.delattr(Archive, "record")
        read = desk.do(handlers.handle, request)
    with desk.store.read() as txn:
        lease, frames = read(txn)
    assert [(one.group_id, one.trajectory.slot) for one in lease.handed] == [
        ("g0000000001", 1), (waiting, 0),
    ]  # fmt: skip
    assert lease.following == (0, 0, 0) and frames == []


def test_groups_within_their_grace_are_not_looked_at(desk, made, monkeypatch):
    archiving, looked = made(desk), []
    desk.now -= GRACE_S
    monkeypatch.setattr(Txn, "existing_row", _counted(Txn.existing_row, looked))
    desk.do(archiving.tick)
    assert len(looked) == 1 and archived(desk) == []


def _counted(function, calls):
    def counted(*args):
        calls.append(args)
        return function(*args)

    return counted


def test_an_archived_group_is_copied_evicted_and_drawn_after_a_rewind(desk, made, tmp_path):
    archiving = made(desk)
    tick(desk, archiving, lambda: archived(desk))
    desk.store.copy(tmp_path / "moment")
    to = tmp_path / "copy"
    copy_finished([tmp_path / "moment"], to, contrast=True, on_group=lambda group: None)
    copy = Store(tmp_path / "copy", read_only=True)
    assert verify(copy) == [] and len(list(store_reads.rows(copy))) == 5
    copy.close()
    desk.set_version(3)  # two steps are taken back
    drawn = desk.draw(1, 3)
    assert drawn is not None and desk.row(drawn.groups[0]).archived and verify(desk.store) == []
    desk.release_draws()
    gone = desk.evict(RetentionConfig(groups=3, grace_s=0.0))
    assert len(gone) == 2 and verify(desk.store) == []
    assert counts.under(desk.index.counts, "evicted") == {"train/trained": 2}
    assert desk.index.counts["archived"] == 3


def test_groups_that_may_be_drawn_again_stay_in_the_store(desk, made):
    desk.configure(sampler={"reuse": 2})
    desk.reopen()
    archiving = made(desk)
    for _ in range(3):
        archiving._next = 0.0
        desk.do(archiving.tick)
    assert archived(desk) == []
    desk.set_version(30)  # now they are too old
    archiving._next = 0.0
    tick(desk, archiving, lambda: archived(desk))
    assert len(archived(desk)) == 5


def test_what_a_transaction_took_back_is_archived_again_in_the_same_file(desk, made, tmp_path):
    before, archiving = contents(desk.store), made(desk)
    desk.do(archiving.tick)
    desk.do(archiving.tick)
    deadline = time.monotonic() + 60
    while archiving._results.empty():
        assert time.monotonic() < deadline
        time.sleep(0.01)

    def interrupted(work: UnitOfWork):
        archiving.tick(work)
        raise IllegalMove("the transaction fails")

    with pytest.raises(IllegalMove):
        desk.do(interrupted)
    desk.reopen()
    assert archived(desk) == [] and contents(desk.store) == before
    archiving = made(desk)
    tick(desk, archiving, lambda: archived(desk))
    assert len(list((tmp_path / "archive").iterdir())) == 1
    assert contents(desk.store) == before and verify(desk.store) == []


def test_the_address_is_written_again_after_a_transaction_that_failed(desk, made, tmp_path):
    before, archiving = contents(desk.store), made(desk)

    def interrupted(work: UnitOfWork):
        archiving.tick(work)
        raise IllegalMove("the transaction fails")

    with pytest.raises(IllegalMove):
        desk.do(interrupted)
    desk.index = Index.load(desk.store, desk.config.buffer)
    tick(desk, archiving, lambda: archived(desk))
    assert contents(desk.store) == before and verify(desk.store) == []


@pytest.mark.parametrize("kind", ["not_writable", "disk_full", "differs", "unreachable"])
def test_an_archive_that_fails_is_named_and_counted_and_the_groups_stay(
    desk, made, tmp_path, monkeypatch, kind, capfd
):
    before, address = contents(desk.store), tmp_path / "archive"
    archiving = made(desk, address)
    with monkeypatch.context() as broken:
        if kind == "not_writable":
            address.write_text("a file in the way")
        elif kind == "disk_full":
            usage = archive_files.shutil.disk_usage(tmp_path)._replace(free=1 << 20)
            broken.setattr(archive_files.shutil, "disk_usage", lambda folder: usage)
        elif kind == "differs":
            broken.setattr(Archive, "_read", lambda self, name: b"something else")
        else:
            broken.setattr(Archive, "_write", _no_connection)
        tick(desk, archiving, lambda: archiving._next > time.monotonic() + 30)
    assert counts.under(desk.index.counts, "archive_failed") == {kind: 1}
    assert archived(desk) == [] and contents(desk.store) == before and verify(desk.store) == []
    if kind == "not_writable":
        address.unlink()
    archiving._next = 0.0  # a minute later
    tick(desk, archiving, lambda: archived(desk))
    assert contents(desk.store) == before and verify(desk.store) == []


def _no_connection(self, name, data):
    raise ConnectionError("no route to host")


@pytest.mark.parametrize("harm", ["missing", "damaged", "cut off"])
def test_an_archive_that_is_missing_or_damaged_is_named_and_harms_no_other_group(
    desk, made, tmp_path, harm
):
    archiving = made(desk)
    tick(desk, archiving, lambda: archived(desk))
    (file,) = (tmp_path / "archive").iterdir()
    whole = file.read_bytes()
    if harm == "missing":
        file.unlink()
    else:
        flipped = bytes(whole[:2000]) + bytes([whole[2000] ^ 1]) + whole[2001:]
        file.write_bytes(flipped if harm == "damaged" else whole[: len(whole) // 2])
    live = desk.complete(5)
    desk.reopen()
    assert store_reads.group(desk.store, live).rewards.tolist() == [0.0]
    with pytest.raises(StoreError, match=f"archive {tmp_path}/archive, file {file.name}: ") as told:
        for row in store_reads.rows(desk.store):
            store_reads.group(desk.store, row["group"])
    assert told.value.facts["kind"] == ("missing" if harm == "missing" else "damaged")
    assert any(file.name in problem for problem in verify(desk.store))
    file.write_bytes(whole)  # it is put back
    desk.reopen()
    assert verify(desk.store) == []


def test_a_damaged_group_stays_in_the_store_and_stops_no_other(desk, made):
    key = b"g0000000002\0" + b"000000"
    with desk.store.write() as txn:
        txn._raw.put(key, b"damaged, surely", db=txn._tables["part"])
    archiving = made(desk)
    tick(desk, archiving, lambda: archived(desk))
    assert archived(desk) == [f"g{n:010d}" for n in (1, 3, 4, 5)]
    archiving._next = 0.0
    desk.do(archiving.tick)
    assert archiving._busy is False  # it is not tried again and again


SOON = "from buffer.server import archiver\nfrom buffer.storage.archive_files import Archive\n"
SOON += "archiver.WAIT_S = 0.0\n"
KILLS = {
    "before the file": "Archive._write = lambda self, name, data: os._exit(9)",
    "after the file": "Archive._read = lambda self, name: os._exit(9)",
    "after the comparison": "Archiver = archiver.Archiver\nArchiver._take = lambda *_: os._exit(9)",
}


@pytest.mark.parametrize("kill", KILLS)
def test_a_service_killed_while_it_archives_loses_nothing_and_archives_once(tmp_path, kill):
    """Real processes that end at once, and then one that is not killed."""
    options = (
        f"buffer.archive={tmp_path / 'archive'}",
        "buffer.retention.grace_s=0",
        "learner.groups_per_step=3",
    )
    first = Served(tmp_path / "store", "tcp://127.0.0.1:0", *options[1:])
    with BufferClient(first.endpoint) as client:
        client.add_tasks([Task(f"t{n}", "workshop", n) for n in range(3)])
        for _ in range(3):
            group = client.lease("a", 0, GroupPlan(1)).group_id
            client.put(group, "a", finished(0, length=3000))
        drawn = client.draw(3, 0)
        client.commit(drawn.draw_id, 1, 1)
        names = [group.group_id for group in drawn.groups]
        before = [codec.encode(group) for group in client.get(names)]
    assert first.stop() == 0
    dying = Served(
        tmp_path / "store", "tcp://127.0.0.1:0", *options, change=f"import os\n{SOON}{KILLS[kill]}"
    )
    assert dying.process.wait(60) == 9
    last = Served(tmp_path / "store", "tcp://127.0.0.1:0", *options, change=SOON)
    with BufferClient(last.endpoint) as client:
        deadline = time.monotonic() + 60
        while client.stats().archived < 3:
            assert time.monotonic() < deadline, "nothing was archived"
            time.sleep(0.1)
        assert [codec.encode(group) for group in client.get(names)] == before
        assert len(client.query(state="trained")) == 3
        assert client.add_tasks([Task("more", "workshop", 9)]) == 1  # training goes on
        lease = client.lease("a", 1, GroupPlan(1, handed=(AttemptKey(names[0], 0),)))
        assert [one.group_id for one in lease.handed] == names[:1]
    assert last.stop() == 0
    assert len(list((tmp_path / "archive").iterdir())) == 1
    store = Store(tmp_path / "store", read_only=True)
    assert verify(store) == []
    store.close()
