"""Removes what the store keeps about evicted groups once nobody can need it.

Tombs: an evicted group that is older than every stored group needs no tomb, since all groups of
that age were evicted. Draws and steps of the ledger are removed a while after the step, once all
their groups are evicted. An archived group is not evicted, so its draws and steps stay.
"""

from itertools import islice

from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.layout import u64
from buffer.storage.stored_rows import DrawRow
from r3l import codec

AT_ONCE = 128  # entries of a table that one transaction looks at
KEPT_DRAWS = 1000  # newest draws, with their steps, that are kept in any case


def prune(work: UnitOfWork, grace_s: float) -> None:
    """Removes some tombs, draws and steps, the oldest first. `grace_s`: keeps draws that are
    younger, in seconds."""
    _prune_tombs(work)
    _prune_draws(work, grace_s)


def _prune_tombs(work: UnitOfWork) -> None:
    txn = work.txn
    tombs = list(islice(txn.keys("tomb"), AT_ONCE + 1))
    oldest = next(txn.keys("state"), None) or txn.last_group().encode()
    gone = [key for key in tombs[:AT_ONCE] if key < oldest]  # the newest group's tomb stays
    if not gone:
        return
    txn.put("sys", b"evicted", max(gone))
    for key in gone:
        txn.delete("tomb", key)


def _prune_draws(work: UnitOfWork, grace_s: float) -> None:
    txn = work.txn
    for key, data in list(islice(txn.scan("draw"), AT_ONCE)):
        drawn = codec.decode(DrawRow, data)
        if drawn.draw_id >= work.index.next_draw - KEPT_DRAWS or work.now < drawn.when + grace_s:
            return
        if drawn.outcome == "open" or any(txn.row(name) for name in drawn.groups):
            continue
        txn.delete("draw", key)
        if drawn.outcome == "trained":
            txn.delete("ledger", u64(drawn.step))
        work.count("draws_pruned")
