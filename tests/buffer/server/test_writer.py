"""The writer: many requests in one transaction, replies after its commit."""

import shutil
from collections import Counter
from types import SimpleNamespace

import pytest

from buffer import BufferClient
from buffer.indexes.index import Index
from buffer.server import writer
from buffer.server.fair_queue import FairQueue
from buffer.server.writer import Writer
from buffer.wire import messages
from r3l.errors import BufferError_, BufferUnavailable, NotFound, UserError
from r3l.records import GroupPlan, SlotResult, Task
from tests.buffer.fakes import calls


@pytest.fixture
def queue():
    return FairQueue()


@pytest.fixture
def working(desk, queue, tasks):
    """A writer on the desk's store, which has three tasks."""
    desk.add(tasks(3))
    return Writer(desk.store, desk.rules, queue, Counter())


def run(working, queue, *requests):
    """The results of these requests, transaction by transaction."""
    for number, call in enumerate(requests):
        header, *rest = call.frames(f"r{number}")
        queue.put([messages.read_request(b"client", messages.read_header([header]), rest)])
    queue.end()
    sent = []
    working.run(lambda results: sent.append({r.rid: result for r, result in results}))
    return sent


def lease(actor="a"):
    return calls.lease(actor, 0, GroupPlan(1))


def test_requests_that_wait_are_one_transaction_and_replied_to_after_its_commit(
    working, queue, desk, monkeypatch
):
    order = []
    write = desk.store.write

    def noted():
        order.append("transaction")
        return write()

    monkeypatch.setattr(desk.store, "write", noted)
    (sent,) = run(working, queue, lease("a"), lease("b"), calls.renew(["g0000000001"], "b"))
    assert order == ["transaction"]
    assert sent["r1"][0].group_id == "g0000000002" and sent["r2"].group_ids == ("g0000000001",)
    assert desk.row("g0000000001").actor == "a"
    assert working.done_bytes > 0


def test_a_transaction_takes_no_more_requests_than_its_limit(working, queue, monkeypatch):
    monkeypatch.setattr(writer, "BATCH_REQUESTS", 2)
    sent = run(working, queue, *[lease() for _ in range(5)])
    assert [len(results) for results in sent] == [2, 2, 1]


def test_a_refused_request_harms_no_other_of_its_transaction(working, queue):
    skipped = SlotResult(0, "skipped")
    (sent,) = run(working, queue, calls.put("g7", "a", skipped), lease())
    assert isinstance(sent["r0"], NotFound) and sent["r1"][0].group_id == "g0000000001"


def test_a_failed_transaction_is_undone_and_only_the_request_to_blame_is_refused(
    working, queue, desk, monkeypatch
):
    handle = working.handlers.handle

    def broken(work, request):
        if request.rid == "r1":
            work.count("leases", 99)
            raise ZeroDivisionError("a fault of this program")
        return handle(work, request)

    monkeypatch.setattr(working.handlers, "handle", broken)
    (sent,) = run(working, queue, lease("a"), lease("b"), lease("c"))
    assert isinstance(sent["r1"], BufferError_) and "ZeroDivisionError" in str(sent["r1"])
    assert [sent[rid][0].group_id for rid in ("r0", "r2")] == ["g0000000001", "g0000000002"]
    assert working.refused["failed_transactions"] == 2  # of three requests, and of one
    assert working.index.counts["leases"] == 2
    desk.reopen()
    assert desk.index.counts["leases"] == 2


def test_a_writer_whose_store_is_gone_sends_no_reply(working, queue, desk, tmp_path):
    desk.folder.rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="was moved or deleted"):
        run(working, queue, lease())


def test_the_clock_expires_leases_without_any_request(working, queue, desk):
    run(working, queue, lease())
    assert desk.row("g0000000001").has_holder
    working._ticked = 0.0
    with desk.store.write() as txn:
        txn.put_row(txn.row("g0000000001").with_changes(deadline=1.0))
    working.index = Index.load(desk.store, desk.config.buffer)
    run(working, queue)
    assert desk.row("g0000000001").lease_expired


def test_leases_get_the_time_in_which_the_writer_could_not_renew_them(
    working, queue, desk, monkeypatch
):
    now = [1000.0]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0], sleep=lambda s: None)
    monkeypatch.setattr(writer, "time", clock)
    working._worked = 999.0
    run(working, queue, lease())  # for 10 s
    now[0] = 1020.0  # the process was stopped
    run(working, queue)
    assert desk.row("g0000000001").deadline == 1030.0
    with monkeypatch.context() as full:
        full.setattr(working.handlers, "handle", lambda *_: 1 / 0)
        for now[0] in range(1021, 1050, 2):  # an actor's heartbeats
            run(working, queue, calls.renew(["g0000000001"], "a"))
            run(working, queue)
    run(working, queue, calls.renew(["g0000000001"], "a"))
    row = desk.row("g0000000001")
    assert (
        row.has_holder and row.deadline == now[0] + 10 and not desk.index.counts["leases_expired"]
    )
    for now[0] in range(1050, 1062):
        run(working, queue)
    assert desk.row("g0000000001").lease_expired


@pytest.mark.system
@pytest.mark.parametrize("away", ["moved", "deleted", "replaced"])
def test_a_removed_store_acknowledges_nothing(serve, done, tmp_path, away) -> None:
    served = serve()
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks([Task("t", "bench", 0)])
        group = client.lease("a", 0, GroupPlan(1)).group_id
        store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
        if away == "deleted":
            shutil.rmtree(store)
        else:
            store.rename(elsewhere)
        if away == "replaced":
            shutil.copytree(elsewhere, store)
        client.timeout_s = 3
        with pytest.raises(BufferUnavailable):
            client.put(group, "a", done())
    assert served.process.wait(timeout=120) == 2
    log = (tmp_path / "store.log").read_text()
    assert log.count("was moved or deleted") == 1
    assert len(log.splitlines()) < 60
