"""The service as a process: what it promises when it, its clients or its messages go wrong."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import msgpack
import msgspec
import numpy as np
import pytest
import zmq
from msgspec.structs import replace

from buffer import AsyncBufferClient, BufferClient
from buffer.client.call_results import Call
from buffer.sampling.samplers import FLOOR
from buffer.server.service import Service, rules_of
from buffer.storage.store import Store
from buffer.tools.verify import verify
from buffer.wire import messages, operations
from buffer.wire.access import LEARNER
from r3l import codec
from r3l.errors import Conflict, LeaseLost, LimitExceeded, RecordError, SickResult, StoreError
from r3l.records import GroupPlan, SlotResult
from r3l.run.config import load
from tests.buffer.fakes import calls, thought

pytestmark = pytest.mark.system

WAITS = """
import sys
from buffer import BufferClient
client = BufferClient(sys.argv[1])
client.stats()
print("waits", flush=True)
client.draw(1, 0, consumer="notebook", wait_s=600.0)
"""


def _header(op="stats", rid="r", **more):
    return msgpack.packb({"v": messages.PROTOCOL, "op": op, "rid": rid} | more)


def test_two_steps_run_from_tasks_to_the_ledger(client, tasks, done):
    assert client.add_tasks(tasks(5)) == 5
    for step in (1, 2):
        for _ in range(4):
            lease = client.lease("a", step - 1, GroupPlan(2), {"tokens_per_s": 5.0})
            assert client.put(lease.group_id, "a", done(version=step - 1, reward=1.0)).new
            client.put(lease.group_id, "a", SlotResult(1, "skipped", cause="not_triggered", of=0))
        draw = client.draw(4, step - 1, wait_s=5)
        assert [g.state for g in draw.groups] == ["drawn"] * 4
        client.commit(draw.draw_id, step, step)
        assert client.ledger(step) == draw.row.groups
    client.renew([], "a", {"requests": 3.0})
    stats = client.stats()
    assert (stats.trained, stats.puts, stats.draws, stats.learner_version) == (8, 16, 2, 2)
    assert stats.actors["a"]["tokens_per_s"] == 5.0 and stats.actors["a"]["requests"] == 3.0
    assert len(client.query(purpose="train", state="trained", limit=3)) == 3


def test_a_prioritised_batch_comes_with_probabilities_and_weights_that_the_store_keeps(
    serve, tasks, done
):
    served = serve(
        "tcp://127.0.0.1:0", "learner.groups_per_step=2", "buffer.sampler=prioritised",
        "buffer.sampler.alpha=2", "buffer.sampler.beta=0.5", "buffer.sampler.reuse=2",
    )  # fmt: skip
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(9))
        for reward in (0.0, 1.0, 3.0):
            group = client.lease("a", 0, GroupPlan(3)).group_id
            client.put(group, "a", [done(0), done(1, reward=reward)])
            failed = SlotResult(2, "failed", cause="engine", of=0)
            assert client.put(group, "a", failed).complete
        draw = client.draw(2, 0)
        client.commit(draw.draw_id, 1, 1)
        again = client.draw(3, 1)  # the one left, and two for a second time
        assert client.stats().slot_drops == {"distilled/engine": 3}
    contrasts = np.array([0.0, 1.0, 3.0]) + FLOOR
    for batch, uses in ((draw, 1), (again, 3)):
        exact = contrasts**2 / (contrasts**2).sum()
        drawn = [int(group.group_id[1:]) - 1 for group in batch.groups]
        assert batch.row.probabilities == pytest.approx(exact[drawn], rel=1e-9), uses
        beta = 0.5 if len(drawn) < 3 else 0.0  # all were drawn, so nothing was chosen
        assert batch.row.weights == pytest.approx((3 * exact[drawn]) ** -beta, rel=1e-9)
    store = Store(served.folder, read_only=True)
    with store.read() as txn:
        kept = txn.draw(draw.draw_id)
    store.close()
    assert (kept.probabilities, kept.weights) == (draw.row.probabilities, draw.row.weights)


def test_a_trajectory_is_returned_bit_by_bit(client, tasks, done):
    client.add_tasks(tasks(1))
    group = client.lease("a", 0, GroupPlan(1)).group_id
    sent = done(length=5000)
    client.put(group, "a", sent, (0, "hash"))
    (got,) = client.get([group])
    assert got.fingerprints == {0: "hash"}
    assert codec.encode(got.results[0]) == codec.encode(sent)
    assert np.array_equal(got.trajectories[0].token_ids, sent.trajectory.token_ids)


@pytest.mark.parametrize("kind", [BufferClient, AsyncBufferClient])
def test_a_draw_waits_until_there_are_enough_groups(kind, client, served, tasks, done):
    client.add_tasks(tasks(2))
    drawn = []

    async def coroutine():
        async with AsyncBufferClient(served.endpoint) as mine:
            return await mine.draw(1, 0, wait_s=120)

    def learner():
        if kind is AsyncBufferClient:
            drawn.append(asyncio.run(coroutine()))
            return
        with BufferClient(served.endpoint) as mine:
            drawn.append(mine.draw(1, 0, wait_s=120))

    thread = threading.Thread(target=learner, daemon=True)
    thread.start()
    thread.join(timeout=0.5)
    assert not drawn
    client.put(client.lease("a", 0, GroupPlan(1)).group_id, "a", done())
    thread.join(timeout=120)
    assert len(drawn[0].groups) == 1


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_killed_or_stopped_notebook_takes_no_groups(serve, tasks, done, end):
    served = serve("tcp://127.0.0.1:0", "buffer.max_staleness=0", "learner.groups_per_step=1")
    notebook = subprocess.Popen(
        [sys.executable, "-c", WAITS, served.endpoint], stdout=subprocess.PIPE, text=True
    )
    try:
        assert notebook.stdout.readline() == "waits\n"
        time.sleep(1.0)
        os.kill(notebook.pid, end)
        with BufferClient(served.endpoint) as learner:
            learner.add_tasks(tasks(9))
            learner.put(learner.lease("a", 0, GroupPlan(1)).group_id, "a", done())
            assert learner.stats().drawn_by == {}
            assert len(learner.draw(1, 0).groups) == 1
    finally:
        notebook.kill()
        notebook.wait()
        notebook.stdout.close()


def test_a_learner_goes_back_beside_a_notebook_that_waits(serve, tasks, done):
    served, ends = serve("tcp://127.0.0.1:0", "learner.groups_per_step=2"), []

    def wait():
        with BufferClient(served.endpoint) as notebook:
            try:
                notebook.draw(2, 5, consumer="notebook", wait_s=600.0)
            except Conflict as error:
                ends.append(str(error))

    with BufferClient(served.endpoint) as learner:
        learner.add_tasks(tasks(9))
        for step in range(1, 5):
            for _ in range(2):
                group = learner.lease("a", step - 1, GroupPlan(1)).group_id
                learner.put(group, "a", done(version=step - 1))
            learner.commit(learner.draw(2, step - 1).draw_id, step, step)
        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        time.sleep(1.0)
        assert learner.set_version(3) == 2
        waiting.join(60)
        assert learner.stats().learner_version == 3
        assert len(ends) == 1 and "version 5: the learner is at version 3" in ends[0]
        assert len(learner.draw(2, 3).groups) == 2


def test_a_client_with_the_most_waiting_requests_is_refused_one_more(tmp_path):
    with Store(tmp_path) as store:
        service = Service(store, rules_of(load()), "tcp://127.0.0.1:0")
        for number in range(messages.REQUESTS_IN_FLIGHT + 1):
            service._receive(b"crowd", LEARNER, calls.stats().frames(f"r{number}"))
        assert service._refused["LimitExceeded"] == 1
        service._hand_over()
        service.stop()
        service.run()
        assert not service._waiting


def test_a_draw_without_groups_in_time_is_none(client):
    assert client.draw(1, 0, wait_s=0.3) is None


def test_errors_keep_their_type_across_the_wire(client, tasks, done):
    client.add_tasks(tasks(1))
    group = client.lease("a", 0, GroupPlan(1)).group_id
    with pytest.raises(LeaseLost, match=group):
        client.put(group, "b", done())
    with pytest.raises(LimitExceeded, match="1 to 8"):
        client.draw(9, 0)
    assert client.stats().refused == {"LeaseLost": 1, "LimitExceeded": 1}


def test_a_result_of_a_sick_engine_is_counted_by_its_symptom_and_its_actor_is_named(
    served, client, tasks, done
):
    client.add_tasks(tasks(1))
    group = client.lease("a", 0, GroupPlan(1)).group_id
    with pytest.raises(SickResult, match="version 1 does not exist yet"):
        client.put(group, "a", done(version=1))
    assert client.stats().refused == {"version_future": 1}
    assert client.put(group, "a", done()).complete
    served.stop()
    log = Path(f"{served.folder}.log").read_text()
    assert "r3l-notice: refused a request of a: policy version 1 " in log


RESULT, THOUGHT = codec.encode(SlotResult(0, "skipped")), codec.encode(thought())


def _put(*results, thoughts=()):
    sent = [tuple(map(msgspec.Raw, records)) for records in (results, thoughts)]
    return codec.encode(operations.Put("g", "a", None, *sent))


HOSTILE = [
    ([b""], "RecordError"),
    ([b"\xc1\xc1"], "RecordError"),
    ([b"\x80"], "SchemaVersionError"),
    ([_header(v=99)], "SchemaVersionError"),
    ([_header(v=messages.PROTOCOL - 1)], "SchemaVersionError"),
    ([_header(rid="")], "RecordError"),
    ([_header(rid=5)], "RecordError"),
    ([_header("drop_everything"), b""], "UnknownOperation"),
    ([_header(["stats"]), b""], "UnknownOperation"),
    ([_header()], "RecordError"),
    ([_header(), b"junk"], "RecordError"),
    ([_header(), msgpack.packb([codec.SCHEMA + 1, "GetStats", {}])], "SchemaVersionError"),
    ([_header("put"), _put()], "RecordError"),
    ([_header("put"), _put(RESULT), b"junk"], "RecordError"),
    ([_header("put"), _put(*[RESULT] * 1025)], "RecordError"),
    ([_header("put"), _put(RESULT)[:-1]], "RecordError"),
    ([_header("put"), _put(b"junk")], "RecordError"),
    ([_header("put"), _put(b"\xc0")], "NotFound"),  # the group is looked up first
    ([_header("put"), _put(thoughts=[THOUGHT] * 1025)], "RecordError"),
    ([_header("put"), _put(thoughts=[b"\xc0"])], "NotFound"),
    ([_header("put"), codec.encode(operations.Renew((), "a", {}))], "RecordError"),
    ([_header("draw"), codec.encode(operations.DrawGroups(1, -1, "learner"))], "RecordError"),
    ([_header("commit"), codec.encode(operations.Commit(1, -1, 1))], "RecordError"),
    ([_header("commit"), codec.encode(operations.Commit(1, 1, -1))], "RecordError"),
    ([_header("set_version"), codec.encode(operations.SetVersion(-1))], "RecordError"),
    ([b"\x81\xa1v" + b"\x00" * (80 << 10)], "RecordError"),
    ([_header("put"), b"x" * (17 << 20), b""], "RecordError"),
    ([b"cposix\nsystem\np0\n(S'true'\ntR."], "RecordError"),
]


def test_a_hostile_message_gets_a_named_error_and_changes_nothing(client, raw):
    before = client.stats()
    for frames, error in HOSTILE:
        assert raw(*frames)["error"] == error
    after = client.stats()
    assert after.refused == Counter(error for _, error in HOSTILE)
    assert (after.train, after.puts, after.tasks) == (before.train, before.puts, before.tasks)


def test_a_full_store_refuses_results_by_name_and_keeps_serving(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", f"buffer.map_gib={3 / 1024}", "learner.groups_per_step=99")
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(9))
        leased = [client.lease("a", 0, GroupPlan(1)).group_id for _ in range(40)]
        kept = []
        with pytest.raises(StoreError):
            for group in leased:
                client.put(group, "a", done(length=20_000))
                kept.append(group)
        assert served.process.poll() is None
        assert [g.state for g in client.get(kept)] == ["complete"] * len(kept)
        assert served.stop() == 0
        served = serve(served.endpoint, "buffer.map_gib=1", "learner.groups_per_step=99")
        assert client.put(group, "a", done(length=20_000)).complete
        assert client.stats().train["complete"] == len(kept) + 1


def test_a_message_too_large_to_be_read_ends_only_its_own_connection(client, served):
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(served.endpoint)
    dealer.send(b"x" * (messages.MESSAGE_LIMIT + 1))
    assert not dealer.poll(500)
    context.destroy(linger=0)
    assert client.stats().puts == 0


def test_a_killed_and_restarted_service_has_every_acknowledged_result(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=4", "buffer.max_staleness=30")
    acked, errors = [], []

    def actor(name):
        with BufferClient(served.endpoint, timeout_s=30) as client:
            try:
                while len(acked) < 90:
                    lease = client.lease(name, 0, GroupPlan(2))
                    for slot in range(2):
                        client.put(lease.group_id, name, done(slot, reward=float(slot)))
                        acked.append((lease.group_id, slot))
            except Exception as error:
                errors.append(error)

    with BufferClient(served.endpoint, timeout_s=30) as client:
        client.add_tasks(tasks(20))
        threads = [threading.Thread(target=actor, args=(f"a{i}",), daemon=True) for i in range(4)]
        for thread in threads:
            thread.start()
        for floor in (15, 40, 65):
            while len(acked) < floor and not errors:
                time.sleep(0.001)
            served.kill()
            promised = list(acked)
            served = serve(served.endpoint, "learner.groups_per_step=4", "buffer.max_staleness=30")
            held = {g.group_id: g for g in client.get(sorted({group for group, _ in promised}))}
            for group, slot in promised:
                assert slot in {result.slot for result in held[group].results}
        for thread in threads:
            thread.join()
        assert not errors
        stats = client.stats()
        assert stats.puts == len(set(acked)) == len(acked)
        assert stats.train["complete"] == len(acked) // 2


def test_a_service_stopped_by_sigterm_ends_with_0_and_keeps_its_leases(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", "buffer.lease_s=60")
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(2))
        lease = client.lease("a", 0, GroupPlan(2))
        client.put(lease.group_id, "a", done())
        assert served.stop() == 0
        serve(served.endpoint, "buffer.lease_s=60")
        assert client.renew([lease.group_id], "a") == ()
        assert client.lease("b", 0, GroupPlan(2)).group_id != lease.group_id
        assert client.put(lease.group_id, "a", done(1)).complete


def test_a_stopped_service_takes_no_group_from_its_actor(serve, tasks):
    served = serve("tcp://127.0.0.1:0", "buffer.lease_s=10")
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(2))
        group = client.lease("a", 0, GroupPlan(1)).group_id
        served.process.send_signal(signal.SIGSTOP)
        time.sleep(12)
        served.process.send_signal(signal.SIGCONT)
        assert client.lease("b", 0, GroupPlan(1)).group_id != group
        assert client.renew([group], "a") == () and client.stats().leases_expired == 0


def _fails(*arguments):
    command = [sys.executable, "-m", "buffer.cli", "serve", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and ended.stdout == "" and ended.stderr.count("\n") == 1
    return ended.stderr


def test_a_service_whose_loop_fails_ends_and_does_not_hang(serve):
    served = serve(
        change="from buffer.server.service import Service\n"
        "def fail(service, **_): raise OSError('no more')\n"
        "Service._front = fail"
    )
    assert served.process.wait(timeout=60) == 1
    assert "no more" in Path(f"{served.folder}.log").read_text()


def test_a_service_that_cannot_start_says_why_in_one_line(served, tmp_path):
    anywhere = "tcp://127.0.0.1:0"
    assert "already served by process" in _fails("--store", served.folder, "--bind", anywhere)
    other = tmp_path / "other"
    assert "in use" in _fails("--store", other, "--bind", served.endpoint)
    assert "loopback" in _fails("--store", other, "--bind", "tcp://0.0.0.0:0")
    assert "sampler" in _fails("--store", other, "--bind", anywhere, "buffer.sampler=best")
    (tmp_path / "file").write_text("")
    assert "cannot be used" in _fails("--store", tmp_path / "file", "--bind", anywhere)


def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused_by_its_field(serve, tasks, done):
    served = serve()
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        group = client.lease("a", 0, GroupPlan(1)).group_id
        call = calls.put(group, "a", done())
        good = np.arange(8, dtype="<i4").tobytes()
        whole = bytes(call.arguments.results[0])
        bad = whole.replace(b"\xc4\x20" + good, b"\xc4\x1c" + good[:28])
        assert len(bad) == len(whole) - 4
        arguments = replace(call.arguments, results=(msgspec.Raw(bad),))
        with pytest.raises(RecordError, match=r"trajectory\.token_ids"):
            client._ask(Call(arguments))
        assert set(client.stats().refused) == {"RecordError"}


# ── long answers and requests that come again ───────────────────────────────────────────────


def test_answers_of_any_length_come_in_parts_and_a_draw_waits_for_no_query(serve, tasks, done):
    parts = "import buffer.wire.parts as p\np.PART_BYTES = p.FRAME_BYTES = 2000"
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=9", change=parts)
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(9))
        sent = [done(length=n, reward=float(n)) for n in range(100, 1000, 100)]
        names = []
        for result in sent:
            names.append(client.lease("a", 0, GroupPlan(1)).group_id)
            client.put(names[-1], "a", result)
        draw = client.draw(9, 0)
        for groups in (draw.groups, client.get(names), client.query(limit=9)[::-1]):
            assert [group.group_id for group in groups] == names
            assert [codec.encode(group.results[0]) for group in groups] == [
                codec.encode(result) for result in sent
            ]
        older = client.query(limit=2, before=names[4])
        assert [group.group_id for group in older] == [names[3], names[2]]


def test_a_group_larger_than_a_message_is_put_continued_drawn_and_read(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=1")
    large = [done(slot, length=700_000, reward=slot) for slot in range(3)]
    assert 2 * len(codec.encode(large[0])) < codec.RECORD_LIMIT
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(1))
        group = client.lease("a", 0, GroupPlan(4)).group_id
        for result in large:
            client.put(group, "a", result)
        client.put_partial(group, "a", done(3, length=700_000))
        client.release([group], "a")
        lease = client.lease("b", 0)
        held = [codec.encode(each) for each in (*lease.accepted, *lease.partial)]
        assert sum(map(len, held)) > codec.RECORD_LIMIT and len(held) == 4
        client.put(group, "b", SlotResult(3, "skipped"))
        (drawn,) = client.draw(1, 0).groups
        assert [codec.encode(each) for each in drawn.results[:3]] == held[:3]
        client.release_draws()
        assert client.get([group])[0].rewards.tolist() == [0.0, 1.0, 2.0]
    assert served.stop() == 0
    store = Store(served.folder, read_only=True)
    assert verify(store) == []
    store.close()


def test_a_large_put_that_waits_is_sent_once_and_carried_out_once(
    serve, tasks, done, monkeypatch, tmp_path
):
    """The service is slow: its client inquires, and the put is neither sent nor queued again."""
    slow = """
import time
from buffer.groups import results
put = results.put
def slowly(work, args):
    with open({log!r}, "a") as log:
        log.write("x")
    time.sleep(3)
    return put(work, args)
results.put = slowly
"""
    log = tmp_path / "puts"
    served = serve("tcp://127.0.0.1:0", change=slow.format(log=str(log)))
    sent, send = [], BufferClient._send
    monkeypatch.setattr("buffer.client.clients.FIRST_TRY_S", 0.2)
    monkeypatch.setattr("buffer.client.clients.LONGEST_TRY_S", 0.2)
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(1))
        group = client.lease("a", 0, GroupPlan(1)).group_id

        def counted(self, exchange, call, *, whole):
            sent.append((call.operation, whole))
            send(self, exchange, call, whole=whole)

        monkeypatch.setattr(BufferClient, "_send", counted)
        assert client.put(group, "a", done(length=20_000)).new == 1
        assert sent.count(("put", True)) == 1 and sent.count(("put", False)) > 3
    assert log.read_text() == "x"
