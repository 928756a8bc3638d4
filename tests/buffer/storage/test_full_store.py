"""A store with something in every table is read whole, goes on where it was, and other schemas
are refused."""

import pytest

from buffer import BufferClient
from buffer.storage import result_checksums
from buffer.storage.layout import LAST_READERS, SCHEMA
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from r3l import codec
from r3l.errors import Conflict, SchemaVersionError
from r3l.records import GroupPlan, SlotResult, Task
from tests.buffer.storage.full_store import (
    SETTINGS,
    advice,
    contents,
    fill,
    no_advice,
    retried,
    skipped,
)

DISTILLED, HALF, FRESH = "g0000000003", "g0000000010", "g0000000011"
OPTIONS = (
    "learner.groups_per_step=2", "buffer.max_staleness=3", "buffer.lease_s=60",
    "buffer.sampler=prioritised", "buffer.sampler.reuse=2", "buffer.sampler.cooldown=1",
    "buffer.sampler.beta=0.5",
)  # fmt: skip


@pytest.fixture
def full(make_desk):
    desk = make_desk(**SETTINGS)
    fill(desk)
    return desk


def _newer(record):
    """A record as the next format may write it."""
    assert record[:1] == b"\x93" and record[1] <= codec.SCHEMA
    return b"\x93" + bytes([codec.SCHEMA + 1]) + record[2:]


def test_everything_in_a_store_is_read_without_changing_it(full):
    kept = contents(full.store)
    full.store.close()
    before = (full.folder / "data.mdb").read_bytes()
    store = Store(full.folder, read_only=True)
    assert verify(store) == []
    assert contents(store) == kept
    replayed, gone = store_reads.replay(store, 1)
    assert [g.group_id for g in replayed] == ["g0000000002"] and gone == ["g0000000001"]
    store.close()
    assert (full.folder / "data.mdb").read_bytes() == before


def test_a_copied_store_equals_the_original(full, tmp_path):
    full.store.copy(tmp_path / "copy")
    copy = Store(tmp_path / "copy", map_gib=0.01)
    assert contents(copy) == contents(full.store)
    assert verify(copy) == verify(full.store) == []
    copy.close()


def test_a_store_with_every_kind_of_row_can_be_served(serve, full, done):
    kept = contents(full.store)
    full.store.close()
    served = serve("tcp://127.0.0.1:0", *OPTIONS)
    with BufferClient(served.endpoint) as client:
        groups = client.get([group["group_id"] for group in kept["groups"]])
        assert [g.state for g in groups] == [group["state"] for group in kept["groups"]]
        with pytest.raises(Conflict):
            client.commit(2, 3, 3)  # it was given back
        leases = [client.lease("new", 2, GroupPlan(2)) for _ in range(3)]
        assert {lease.group_id for lease in leases} == {HALF, FRESH, "g0000000013"}
        half, fresh = (next(x for x in leases if x.group_id == g) for g in (HALF, FRESH))
        sent_before = [
            skipped(3),
            SlotResult(0, "failed", cause="env"),
            done(2, version=2, reward=0.125),
        ]
        assert {codec.encode(r) for r in half.accepted} == {codec.encode(r) for r in sent_before}
        assert [codec.encode(r) for r in half.reflections] == [codec.encode(no_advice())]
        assert [(r.group_id, r.trajectory.slot) for r in fresh.handed] == [("g0000000002", 0)]
        assert fresh.plan.kind == "again"
        assert client.put(HALF, "b", [*sent_before, no_advice()]).new == 0
        with pytest.raises(Conflict, match="slot 2 of group"):
            client.put(HALF, "new", done(2, version=2))
        assert client.put(HALF, "new", [*sent_before, done(1, version=2)]).complete
        client.put(FRESH, "new", [done(n, version=2) for n in (0, 1)])
        client.put("g0000000013", "new", done(version=2))
        assert client.release_draws() == 2
        for number in range(2):
            draw = client.draw(2, 2 + number)
            client.commit(draw.draw_id, 3 + number, 3 + number)
        assert client.stats().eval_progress == {"step-2": (2, 2)}
        assert client.add_tasks([Task(f"new{n}", "workshop", n) for n in range(3)]) == 3
    assert served.stop() == 0
    store = Store(full.folder, read_only=True)
    assert verify(store) == []
    (again,) = (g for g in store_reads.replay(store, 2)[0] if g.group_id == DISTILLED)
    assert codec.encode(again.results[-1]) == codec.encode(retried())
    assert [codec.encode(r) for r in again.reflections] == [codec.encode(advice())]
    store.close()


@pytest.mark.parametrize("schema", [SCHEMA - 1, SCHEMA + 1])
def test_a_store_of_another_schema_is_refused_in_a_line_and_left_alone(full, schema):
    with full.store.write() as txn:
        txn.put("sys", b"schema", codec.pack({"schema": schema}))
    full.store.close()
    before = (full.folder / "data.mdb").read_bytes()
    said = rf"has schema {schema}, but this r3l reads only schema {SCHEMA}; .*choose a new folder$"
    if schema < SCHEMA:
        said = said.replace(".*", f".*commit {LAST_READERS[schema]} .*")
    for read_only in (False, True, False):
        with pytest.raises(SchemaVersionError, match=said):
            Store(full.folder, map_gib=0.25, read_only=read_only)
    assert (full.folder / "data.mdb").read_bytes() == before


def test_a_record_of_a_later_schema_is_named_and_harms_no_other(full):
    with full.store.write() as txn:
        txn.put("group", b"g0000000004", _newer(txn.get("group", b"g0000000004")))
    (problem,) = verify(full.store)
    assert f"g0000000004: record of schema {codec.SCHEMA + 1}" in problem
    with full.store.read() as txn:
        with pytest.raises(SchemaVersionError):
            result_checksums.read(txn, txn.row("g0000000004"))
        other = txn.row("g0000000003")
        assert result_checksums.read(txn, other).state == other.state
