"""A copy of a store with other results: sound, counted again, whole or not there at all."""

import pytest
from msgspec.structs import replace

from buffer.storage.counts import slot_drops, under
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.rewrite import put_group, rewrite_store
from buffer.tools.verify import verify
from r3l import codec
from r3l.errors import UserError
from r3l.records import SlotResult


def failed(group):
    """A group whose attempts are all left out."""
    results = [
        SlotResult(each.slot, "failed", cause="replay_diverged", of=each.of)
        if each.trajectory
        else each
        for each in group.results
    ]
    return replace(group, results=tuple(results))


def every_group(store):
    return [store_reads.group(store, row["group"]) for row in store_reads.rows(store)]


def test_a_store_that_is_written_again_is_the_same(filled, tmp_path):
    with rewrite_store(filled.store, tmp_path / "new") as copy, copy.write() as txn:
        for group in every_group(filled.store):
            put_group(txn, group)
    new = Store(tmp_path / "new", read_only=True)
    assert verify(new) == []
    same = [list(map(codec.encode, every_group(store))) for store in (filled.store, new)]
    assert same[0] == same[1]
    with filled.store.read() as old, new.read() as txn:
        assert list(old.rows()) == list(txn.rows()) and old.counts() == txn.counts()
    new.close()


def test_a_store_whose_attempts_were_left_out_is_sound_and_counts_them(trained, tmp_path):
    names = [row["group"] for row in store_reads.rows(trained.store) if row["done"]]
    with rewrite_store(trained.store, tmp_path / "new") as copy, copy.write() as txn:
        for name in names:
            put_group(txn, failed(store_reads.group(trained.store, name)))
    new = Store(tmp_path / "new", read_only=True)
    assert verify(new) == []
    assert [row["done"] for row in store_reads.rows(new)] == [0, 0, 0, 0]
    with trained.store.read() as old, new.read() as txn:
        before, after = old.counts(), txn.counts()
    assert under(after, "group/train") == under(before, "group/train")
    assert slot_drops(before) == {"base/env": 1}
    assert slot_drops(after) == {"base/env": 1, "base/replay_diverged": 3}
    assert [row["done"] for row in store_reads.rows(trained.store)] == [1, 1, 0, 1]
    new.close()


def test_after_an_error_nothing_is_there(trained, tmp_path):
    with pytest.raises(KeyError), rewrite_store(trained.store, tmp_path / "new"):
        raise KeyError
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".building-*"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").touch()
    with (
        pytest.raises(UserError, match="not empty"),
        rewrite_store(trained.store, tmp_path / "new"),
    ):
        pass
