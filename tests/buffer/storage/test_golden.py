"""Stores that earlier formats wrote are read whole, go on where they were, and newer ones are
refused."""

import pytest

from buffer import BufferClient
from buffer.storage import checksums, counts
from buffer.storage.layout import SCHEMA
from buffer.storage.store import Store
from buffer.tools import archive, offline
from buffer.tools.verify import verify
from r3l import codec
from r3l.errors import Conflict, SchemaVersionError
from r3l.records import GroupPlan, SlotResult
from tests.buffer.storage.golden_store import SETTINGS, contents, retried, skipped, unpack

FROZEN = pytest.mark.parametrize("name", ["schema-2-records-1", "schema-2-records-2"])
DISTILLED, HALF = "g0000000003", "g0000000010"
OPTIONS = (
    "--groups-per-step", 2, "--max-staleness", 3, "--sampler", "prioritised", "--reuse", 2,
    "--cooldown", 1, "--beta", 0.5, "--lease-s", 60,
)  # fmt: skip


def _same(found, kept):
    """`found` says what `kept` does; it may have fields that were not there yet."""
    if isinstance(kept, dict):
        return kept.keys() <= found.keys() and all(_same(found[k], kept[k]) for k in kept)
    if isinstance(kept, list):
        return len(found) == len(kept) and all(map(_same, found, kept))
    return type(found) is type(kept) and found == kept


def _newer(record):
    """A record as the next format may write it."""
    assert record[:1] == b"\x93" and record[1] <= codec.SCHEMA
    return b"\x93" + bytes([codec.SCHEMA + 1]) + record[2:]


@FROZEN
def test_everything_a_golden_store_holds_is_read_without_changing_it(tmp_path, name):
    kept = unpack(tmp_path / "old", name)
    before = (tmp_path / "old" / "data.mdb").read_bytes()
    store = Store(tmp_path / "old", read_only=True)
    assert verify(store) == []
    found = contents(store)
    for what, lines in kept.items():
        assert _same(found[what], lines), what
    replayed, gone = offline.replay(store, 1)
    assert [g.group_id for g in replayed] == ["g0000000002"] and gone == ["g0000000001"]
    store.close()
    assert (tmp_path / "old" / "data.mdb").read_bytes() == before


@FROZEN
def test_a_golden_store_written_out_and_in_again_says_the_same(tmp_path, name):
    kept = unpack(tmp_path / "old", name)
    store, copy = Store(tmp_path / "old", map_gib=0.01), Store(tmp_path / "copy", map_gib=0.01)
    archive.export(store, tmp_path / "out", "parquet")
    archive.restore(tmp_path / "out", copy)
    found = contents(copy)
    assert all(_same(found[what], lines) for what, lines in kept.items())
    assert verify(copy) == verify(store) == []
    for one in (store, copy):
        one.close()


@FROZEN
def test_a_golden_store_goes_on_serving(serve, tmp_path, tasks, done, name):
    kept = unpack(tmp_path / "store", name)
    served = serve("tcp://127.0.0.1:0", *OPTIONS)
    with BufferClient(served.endpoint) as client:
        groups = client.get([group["group_id"] for group in kept["groups"]])
        assert [g.state for g in groups] == [group["state"] for group in kept["groups"]]
        of = {group["group_id"]: group["task"]["task_id"] for group in kept["groups"]}
        assert client.history(of[DISTILLED], 9)[0].group_id == DISTILLED
        with pytest.raises(Conflict):
            client.commit(2, 3, 3)  # it was given back
        lapsed = [client.lease("new", 2, GroupPlan(2)) for _ in range(3)]
        assert {lease.group_id for lease in lapsed} == {HALF, "g0000000011", "g0000000013"}
        accepted = {lease.group_id: lease.accepted for lease in lapsed}[HALF]
        sent_before = [
            skipped(),
            SlotResult("base", 0, "failed", cause="env"),
            done("base", 2, version=2, reward=0.125),
        ]
        assert {codec.encode(r) for r in accepted} == {codec.encode(r) for r in sent_before}
        assert client.put(HALF, "b", sent_before).new == 0
        with pytest.raises(Conflict, match="base slot 2"):
            client.put(HALF, "new", done("base", 2, version=2))
        assert client.put(HALF, "new", [*sent_before, done("base", 1, version=2)]).complete
        client.put("g0000000011", "new", [done("base", n, version=2) for n in (0, 1)])
        client.put("g0000000013", "new", done(version=2))
        assert client.release_draws() == 2
        for number in range(2):
            draw = client.draw(2, 2 + number)
            client.commit(draw.draw_id, 3 + number, 3 + number)
        assert client.stats().eval_progress == {"step-2": (2, 2)}
        assert client.add_tasks(tasks(9)) == 3
    assert served.stop() == 0
    store = Store(tmp_path / "store", read_only=True)
    assert verify(store) == []
    (again,) = (g for g in offline.replay(store, 2)[0] if g.group_id == DISTILLED)
    assert codec.encode(again.results[-1]) == codec.encode(retried())
    store.close()


@FROZEN
def test_a_golden_store_of_a_later_schema_is_refused_and_left_alone(make_desk, tmp_path, name):
    unpack(tmp_path / "store", name)
    desk = make_desk(**SETTINGS)
    with desk.store.write() as txn:
        txn.put("sys", b"schema", codec.pack({"schema": SCHEMA + 1}))
    desk.store.close()
    before = (tmp_path / "store" / "data.mdb").read_bytes()
    for read_only in (False, True, False):
        with pytest.raises(SchemaVersionError, match=f"by schema {SCHEMA + 1}; .* 1 to {SCHEMA}"):
            Store(tmp_path / "store", map_gib=0.01, read_only=read_only)
    assert (tmp_path / "store" / "data.mdb").read_bytes() == before


@FROZEN
def test_a_record_of_a_later_schema_is_named_and_harms_no_other(make_desk, tmp_path, name):
    unpack(tmp_path / "store", name)
    desk = make_desk(**SETTINGS)
    with desk.store.write() as txn:
        txn.put("group", b"g0000000004", _newer(txn.get("group", b"g0000000004")))
    (problem,) = verify(desk.store)
    assert f"g0000000004: record of schema {codec.SCHEMA + 1}" in problem
    with desk.store.read() as txn:
        with pytest.raises(SchemaVersionError):
            checksums.read(txn, txn.row("g0000000004"))
        assert checksums.read(txn, txn.row("g0000000003")).state == "drawn"


# ── schema 1, before figures, lists of live groups and checksums ───────────────────────────

STATES_OF_SCHEMA_1 = "complete trained trained expired filling drawn complete".split()


def test_a_store_of_schema_1_can_be_read_without_being_changed(tmp_path):
    folder = tmp_path / "old"
    unpack(folder, "schema-1")
    before = (folder / "data.mdb").read_bytes()
    store = Store(folder, read_only=True)
    assert verify(store) == []
    assert [row["state"] for row in offline.rows(store)] == STATES_OF_SCHEMA_1
    assert [len(g.trajectories) for g in offline.replay(store, 1)[0]] == [1, 1]
    store.close()
    assert (folder / "data.mdb").read_bytes() == before


def test_a_store_of_schema_1_goes_on_where_it_was(make_desk, tmp_path, done):
    unpack(tmp_path / "store", "schema-1")
    desk = make_desk(per_step=2)
    assert desk.index.counts["made"] == 7 and desk.index.counts["puts"] == 9
    assert counts.group_drops(desk.index.drops) == {
        "no_trajectories": 1
    } and desk.index.eval_done == {"eval@0": 1}
    assert desk.row("g0000000002").fingerprints == {0: "abc"}
    desk.now += 11
    taken = desk.lease("b", 1, GroupPlan(2))
    assert taken.group_id == "g0000000005" and len(taken.accepted) == 1
    assert desk.put(taken.group_id, done("base", 1, version=1), "b").complete
    assert desk.release_draws() == 1
    assert desk.draw(2, 1).groups == ("g0000000005", "g0000000006")
    assert desk.lease("b", 1).group_id == "g0000000008"
    assert verify(desk.store) == []
