"""The tables: keys in order, and values that are whole or refused."""

import pytest

from buffer.storage.store import Store
from buffer.storage.stored_rows import RunPosition
from r3l import codec
from r3l.errors import StoreError


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store", map_gib=0.01)
    yield store
    store.close()


@pytest.fixture
def txn(store):
    """A write transaction on an empty store."""
    with store.write() as txn:
        yield txn


@pytest.mark.parametrize("backwards", [False, True])
def test_a_scan_has_every_key_of_its_prefix_in_order(txn, backwards):
    wanted = [b"b", b"b\0", b"b\xff", b"b\xff\xff1"]
    for key in [b"a\xff", *wanted, b"c", b"\xff"]:
        txn.put("task", key, key + b"!")
    found = wanted[::-1] if backwards else wanted
    assert list(txn.keys("task", b"b", backwards=backwards)) == found
    assert list(txn.scan("task", b"b", backwards=backwards)) == [(k, k + b"!") for k in found]
    assert len(list(txn.keys("task", backwards=backwards))) == txn.size("task") == 7
    assert list(txn.keys("group", b"b", backwards=backwards)) == []


def test_a_value_is_read_whole_or_refused(txn):
    txn.put("sys", b"a", codec.encode(RunPosition(version=3)))
    assert txn.read("sys", b"a", RunPosition) == RunPosition(version=3)
    assert txn.read("sys", b"b", RunPosition) is None and not txn.is_sound("sys", b"b")
    assert txn.is_sound("sys", b"a") and not list(txn.damaged())
    txn._raw.put(b"a", b"x" * 40, db=txn._tables["sys"])
    assert not txn.is_sound("sys", b"a") and len(list(txn.damaged())) == 1
    with pytest.raises(StoreError, match="damaged"):
        txn.read("sys", b"a", RunPosition)
