"""Checksums of stored results: damage is named wherever a result is read without its service."""

import random

import pytest
from click.testing import CliRunner

from buffer import cli
from buffer.storage import result_checksums
from buffer.storage.layout import part_key
from buffer.storage.transaction import read_group
from buffer.tools import store_reads
from buffer.tools.verify import verify
from r3l import codec
from r3l.errors import R3LError, RecordError
from r3l.records import GroupPlan
from tests.buffer.fakes import thought


@pytest.fixture
def filled(desk, tasks, done):
    """A trained group, g0000000001, and a half-filled one, g0000000002."""
    desk.add(tasks(9))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, [done(2), done(0), thought(tokens=9)], fingerprint=(0, "abc"))
    desk.resolve(group, 1, "env")
    desk.commit(desk.draw(1).draw_id, 1)
    half = desk.lease(version=1, plan=GroupPlan(2)).group_id
    desk.put(half, [done(1, version=1), thought("half", tokens=9, version=1)])
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
    _flip(filled, "part", part_key("g0000000001", 2), TOKENS, bit=1)
    (problem,) = verify(filled.store)
    assert problem.startswith("g0000000001: slot 2 differs")
    with pytest.raises(RecordError, match="g0000000001: slot 2"):
        store_reads.replay(filled.store, 1)
    filled.store.copy(tmp_path / "copy")
    at = [str(tmp_path / "copy")]
    for command in (["show", *at, "g0000000001"], ["export", *at]):
        result = CliRunner().invoke(cli.main, command)
        assert result.exit_code == 1 and "g0000000001: slot 2" in result.stderr
        assert "token" not in result.output
    assert store_reads.group(filled.store, "g0000000002").state == "filling"


def test_a_flipped_bit_in_an_unfinished_group_is_named_too(filled):
    with filled.store.read() as txn:
        ((key, _),) = txn.scan("part", b"g0000000002")
    _flip(filled, "part", key, TOKENS, bit=5)
    (problem,) = verify(filled.store)
    assert problem.startswith("g0000000002: slot 1 differs")


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ("reflection", b"g0000000001\0reflect-0", "g0000000001: reflection reflect-0 differs"),
        ("reflection", b"g0000000002\0half", "g0000000002: reflection half differs"),
    ],
)
def test_a_flipped_bit_of_a_reflection_is_named(filled, table, key, said):
    _flip(filled, table, key, bytes([0, 0, 0, 109, 0, 0, 0, 110]), bit=1)  # of its last tokens
    (problem,) = verify(filled.store)
    assert problem.startswith(said)


def test_a_group_is_refused_or_unchanged_whichever_byte_is_damaged(filled):
    chance, key = random.Random(1), b"g0000000001"
    refused = 0
    with filled.store.write() as txn:
        row = txn.row(key.decode())
        expected = codec.encode(read_group(txn.record(row.group_id), row))
        tables = ("group", "part", "reflection")
        stored = [(table, *each) for table in tables for each in txn.scan(table, key)]
        assert len(stored) == 5
        for table, at_key, sound in stored:
            for at in range(len(sound)):
                value = bytearray(sound)
                value[at] ^= 1 << chance.randrange(8)
                txn.put(table, at_key, bytes(value))
                try:
                    assert codec.encode(result_checksums.read(txn, row)) == expected, at
                except R3LError:
                    refused += 1
            txn.put(table, at_key, sound)
    size = sum(len(sound) for *_, sound in stored)
    assert refused > 0.9 * size  # all but times and state, which GroupRow holds, and envelopes
