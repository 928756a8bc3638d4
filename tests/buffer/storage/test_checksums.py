"""What was put stays as it was: damage is named, and no second result takes a slot's place."""

import random
import threading

import pytest
from click.testing import CliRunner

from buffer import BufferClient, cli
from buffer.storage import checksums
from buffer.storage.store import Store
from buffer.storage.transaction import read_group
from buffer.tools import archive, offline
from buffer.tools.verify import verify
from r3l import codec
from r3l.errors import Conflict, LeaseLost, R3LError, RecordError
from r3l.records import GroupPlan, SlotResult


@pytest.fixture
def filled(desk, tasks, done):
    """A trained group, g0000000001, and a half-filled one, g0000000002."""
    desk.add(tasks(9))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, [done("base", 2), done("base", 0)], fingerprint=(0, "abc"))
    desk.resolve(group, "base", 1, "env")
    desk.commit(desk.draw(1).draw_id, 1)
    desk.put(desk.lease(version=1, plan=GroupPlan(2)).group_id, done("base", 1, version=1))
    return desk


def _flip(desk, table, key, at, bit=0):
    """Change one bit of a stored value; `at`: byte, or bytes whose last occurrence holds it."""
    with desk.store.write() as txn:
        value = bytearray(txn.get(table, key))
        value[value.rindex(at) + len(at) - 1 if isinstance(at, bytes) else at] ^= 1 << bit
        txn.put(table, key, bytes(value))


TOKENS = bytes([0, 0, 0, 3, 0, 0, 0, 4])  # the middle of the token ids 0, 1, 2, 3, 4, ...


def test_a_flipped_bit_is_named_and_neither_replayed_nor_shown_nor_exported(filled, tmp_path):
    assert verify(filled.store) == []
    _flip(filled, "group", b"g0000000001", TOKENS, bit=1)
    (problem,) = verify(filled.store)
    assert problem.startswith("g0000000001: base slot 2 differs from what was put")
    with pytest.raises(RecordError, match="g0000000001: base slot 2"):
        offline.replay(filled.store, 1)
    filled.store.copy(tmp_path / "copy")
    at = ["--store", str(tmp_path / "copy")]
    for command in (["show", *at, "g0000000001"], ["export", *at, str(tmp_path / "out")]):
        result = CliRunner().invoke(cli.commands, command)
        assert isinstance(result.exception, RecordError) and "token" not in result.output
    assert offline.group(filled.store, "g0000000002").state == "filling"


def test_a_flipped_bit_in_an_unfinished_group_is_named_too(filled):
    with filled.store.read() as txn:
        ((key, _),) = txn.scan("part")
    _flip(filled, "part", key, TOKENS, bit=5)
    (problem,) = verify(filled.store)
    assert problem.startswith("g0000000002: base slot 1 differs from what was put")


def test_whichever_byte_is_damaged_a_group_is_refused_or_as_it_was(filled):
    chance, key = random.Random(1), b"g0000000001"
    refused = 0
    with filled.store.write() as txn:
        row, sound = txn.row(key.decode()), txn.get("group", key)
        expected = codec.encode(read_group(sound, row))
        for at in range(len(sound)):
            value = bytearray(sound)
            value[at] ^= 1 << chance.randrange(8)
            txn.put("group", key, bytes(value))
            try:
                assert codec.encode(checksums.read(txn, row)) == expected, at
            except R3LError:
                refused += 1
    assert refused > 0.95 * len(sound)  # all but the times and the state, which GroupRow holds


def test_what_was_imported_is_guarded_like_what_was_put(filled, tmp_path):
    archive.export(filled.store, tmp_path / "out", "jsonl")
    filled.store.close()
    filled.folder = tmp_path / "copy"
    filled.open()
    archive.restore(tmp_path / "out", filled.store)
    assert verify(filled.store) == []
    _flip(filled, "group", b"g0000000001", TOKENS)
    assert "g0000000001: base slot 2" in verify(filled.store)[0]


def test_a_result_sent_again_is_one_even_after_the_lease_is_gone(filled, done):
    group, sent = "g0000000002", done("base", 1, version=1)
    filled.now += 11
    assert filled.lease("b", version=1).group_id == group
    assert filled.put(group, sent, "a").new == 0
    with pytest.raises(Conflict, match="base slot 1 of group g0000000002"):
        filled.put(group, done("base", 1, version=1, reward=1.0), "a")
    with pytest.raises(LeaseLost):
        filled.put(group, [done("base", 0), done("base", 1, reward=1.0)], "a")
    assert filled.put(group, done("base", 0, version=1), "b").complete
    assert filled.put(group, sent, "a").new == 0


def test_another_result_for_a_resolved_slot_is_refused_with_all_that_came_along(filled, done):
    with pytest.raises(Conflict):
        filled.put("g0000000002", [done("base", 0), done("base", 1, reward=1.0)])
    with pytest.raises(Conflict):
        filled.resolve("g0000000002", "base", 1, "env")
    with pytest.raises(Conflict, match="already"):
        filled.put("g0000000001", done("base", 1))
    assert filled.row("g0000000002").resolved == (("base", 1),)
    assert filled.resolve("g0000000001", "base", 1, "env").new == 0
    assert verify(filled.store) == []


@pytest.mark.parametrize("name", ["the holder", "somebody else"])
def test_of_two_clients_that_race_for_a_slot_exactly_one_wins(serve, tasks, done, name):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=50")
    replies = {}

    def put(client, group, actor, result, start):
        start.wait()
        try:
            replies[group, result.trajectory.reward] = client.put(group, actor, result).new
        except (Conflict, LeaseLost) as refused:
            replies[group, result.trajectory.reward] = refused

    with BufferClient(served.endpoint) as first, BufferClient(served.endpoint) as second:
        first.add_tasks(tasks(9))
        groups = [first.lease("the holder", 0, GroupPlan(2)).group_id for _ in range(20)]
        for group in groups:
            start = threading.Barrier(2)
            racers = [(first, group, "the holder", done(reward=0.0), start)]
            racers += [(second, group, name, done(reward=1.0), start)]
            threads = [threading.Thread(target=put, args=racer, daemon=True) for racer in racers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for held in first.get(groups):
            (won,) = held.rewards
            assert replies[held.group_id, won] == 1
            assert isinstance(replies[held.group_id, 1.0 - won], Conflict | LeaseLost)
    assert served.stop() == 0
    store = Store(served.folder, read_only=True)
    assert verify(store) == []
    store.close()


def test_a_failure_that_was_put_is_told_from_a_straggler_given_up(make_desk, tasks, done):
    desk = make_desk(straggler_s=60.0, min_base=1, lease_s=100.0)
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, [done("base", 0), SlotResult("base", 1, "failed", cause="env")])
    desk.now += 61
    desk.lease("b")
    assert desk.put(group, done("base", 2)).new == 0
    with pytest.raises(Conflict):
        desk.put(group, done("base", 1))
    assert verify(desk.store) == []
