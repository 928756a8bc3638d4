"""The most instructive corrections of a store."""

from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.viewer.attempts import Texts
from launch.inspection import best_retries


def test_a_correction_of_a_store_is_shown_alone_and_in_words(ended):
    store = Store(ended / "buffer", read_only=True)
    found = best_retries.best(store, list(store_reads.rows(store)))
    assert len(found) == 4 and found[0].result == "reward 0.00 → 1.00 from step 1"
    shown = best_retries.shown(store, found[0], Texts(None))
    assert [pair["retry"]["slot"] for pair in shown["pairs"]] == [0]
    line = best_retries.line(found[0])
    assert line["group"] == found[0].group_id and "step 1 spoils" in line["advice"]
    store.close()


def test_a_damaged_group_is_left_out(ended):
    store = Store(ended / "buffer", map_gib=0.25)
    with store.write() as txn:
        for number in range(1, 41, 4):
            txn._raw.put(f"g{number:010}".encode(), b"x" * 40, db=txn._tables["group"])
    found = best_retries.best(store, list(store_reads.rows(store)))
    assert {one.task_id for one in found} == {"door/0001", "door/0002", "door/0003"}
    store.close()
