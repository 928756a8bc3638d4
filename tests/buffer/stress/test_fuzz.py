"""Hostile messages by the thousands (100,000 in `make soak`): every one gets a reply, the service
stays up and small, the store stays as it was."""

import hashlib
import random
import time
from collections import Counter
from contextlib import suppress

import msgpack
import psutil
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from buffer import BufferClient
from buffer.storage.layout import TABLES
from buffer.storage.store import Store
from buffer.wire import messages as protocol
from buffer.wire.operations import OPERATIONS
from r3l import codec
from r3l.errors import RecordError
from r3l.records import GroupPlan, SlotResult, Task
from tests.buffer.fakes import Served, calls, finished, thought

pytestmark = pytest.mark.system

OPTIONS = ("learner.groups_per_step=2", "buffer.max_staleness=1", "buffer.lease_s=86400")
WINDOW = 200  # messages under way


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service whose store has trained, dropped and unfinished groups, none of them free."""
    served = Served(tmp_path_factory.mktemp("fuzz") / "store", "tcp://127.0.0.1:0", *OPTIONS)
    with BufferClient(served.endpoint) as client:
        client.add_tasks([Task(f"t{i}", "workshop", i) for i in range(5)])
        for _ in range(2):
            client.put(client.lease("owner", 0, GroupPlan(1)).group_id, "owner", finished())
        client.commit(client.draw(2, 0).draw_id, 1, 1)
        client.lease("owner", 1, GroupPlan(2))
        client.set_version(1000)  # no actor is new enough to be given a lease
    yield served
    served.kill()


def _digest(served):
    """Of everything but the replies kept for whoever asks again: some requests are well-formed."""
    store = Store(served.folder, read_only=True)
    digest = hashlib.sha256()
    with store.read() as txn:
        for table in TABLES:
            for key, value in txn.scan(table):
                if (table, key) != ("sys", b"replies"):
                    digest.update(b"%d %d " % (len(key), len(value)) + key + value)
    store.close()
    return digest.hexdigest()


class Sender:
    """A client that sends anything and counts the replies."""

    def __init__(self, endpoint):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.connect(endpoint)
        self.sent = self.replied = 0
        self.errors = Counter()

    def send(self, frames):
        self.socket.send_multipart(frames)
        self.sent += 1
        while self.sent - self.replied >= WINDOW:
            self.receive(20_000)

    def receive(self, patience_ms):
        if not self.socket.poll(patience_ms):
            return False
        header = codec.unpack(self.socket.recv_multipart()[0])
        self.replied += 1
        self.errors[header.get("error", "")] += 1
        return True

    def finish(self):
        while self.sent > self.replied and self.receive(20_000):
            pass
        self.context.destroy(linger=0)


def _requests():
    group, result = "g0000000003", finished()
    requests = [
        calls.put(group, "thief", result),
        calls.put("g0000000001", "thief", [result, finished(1)], (0, "hash")),
        calls.put(group, "thief", SlotResult(1, "failed", cause="env")),
        calls.put(group, "thief", [thought(), SlotResult(1, "skipped", of=0)]),
        calls.put("", "thief", SlotResult(0, "failed", cause="env")),
        calls.get([""]),
        calls.get(["g" * 600]),
        calls.lease("thief", 0, GroupPlan(2), {"x": 1.0}),
        calls.renew([group], "thief", {"x": 1.0}),
        calls.release([group], "thief"),
        calls.draw(2, 900, consumer="thief"),
        calls.release_draws("thief"),
        calls.commit(77, 9, 9),
        calls.query("train", "", "trained", 3),
        calls.ledger(1),
        calls.get([group]),
        calls.stats(),
    ]
    return [_without_sum(call.frames("r" * 8)) for call in requests]


def _without_sum(frames):
    """A message as a client of another make sends it: one with a wrong checksum gets no reply."""
    header = codec.unpack(frames[0])
    del header["sum"]
    return [codec.pack(header), *frames[1:]]


def _value(chance, depth=0):
    kinds = [None, True, -1, 1 << 70, 0.5, float("nan"), "x" * 300, b"\0" * 40, "put", "stats"]
    if depth < 4 and chance.random() < 0.4:
        if chance.random() < 0.5:
            return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        return {str(i): _value(chance, depth + 1) for i in range(chance.randrange(4))}
    value = chance.choice(kinds)
    return (1 << 63) if value == 1 << 70 else value


def _hostile(chance, requests):
    """A damaged request, a request of wrong values, or noise."""
    kind = chance.random()
    if kind < 0.1:
        return [chance.randbytes(chance.randrange(64)) for _ in range(chance.randrange(1, 5))]
    frames = [bytearray(frame) for frame in chance.choice(requests)]
    if kind < 0.3:
        place = chance.randrange(len(frames))
        frames[place] = bytearray(msgpack.packb(_value(chance)))
        if place == 1 and chance.random() < 0.7:
            name = chance.choice(list(OPERATIONS.values())).request.__name__
            frames[1] = bytearray(msgpack.packb([codec.SCHEMA, name, _value(chance)]))
        return frames
    for _ in range(chance.randint(1, 4)):
        frame = chance.choice(frames)
        if frame and chance.random() < 0.8:
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        else:
            del frame[chance.randrange(len(frame) + 1) :]
    if chance.random() < 0.1:
        frames.append(bytearray(chance.randbytes(50)))
    return frames


def test_every_hostile_message_gets_a_reply_and_neither_service_nor_store_changes(service, soak):
    chance, requests = random.Random(0), _requests()
    process = psutil.Process(service.process.pid)
    before, began = _digest(service), time.monotonic()
    sender = Sender(service.endpoint)
    total, small = (100_000, 0) if soak else (3000, 0)
    for number in range(total):
        if number == total // 5:
            small = process.memory_info().rss
        sender.send(_hostile(chance, requests))
    sender.finish()
    grown = process.memory_info().rss - small
    assert sender.replied == sender.sent
    assert grown < 16 << 20
    assert "BufferError_" not in sender.errors and "StoreError" not in sender.errors
    assert _digest(service) == before and service.process.poll() is None
    with BufferClient(service.endpoint) as client:
        refused = client.stats().refused
    assert "failed_transactions" not in refused
    assert sum(refused.values()) >= sum(n for name, n in sender.errors.items() if name)
    print(
        f"fuzz: {sender.sent} messages in {time.monotonic() - began:.0f} s, {sender.replied} "
        f"replies; {dict(sender.errors)}; memory {grown >> 10:+d} KiB"
    )


names = st.sampled_from([*OPERATIONS, "", "no such operation"])
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
headers = st.fixed_dictionaries(
    {},
    optional={"v": plain | st.just(protocol.PROTOCOL), "op": plain | names,
              "rid": plain | st.just("r"), "more": plain},
)  # fmt: skip
bodies = st.one_of(
    st.binary(max_size=100),
    plain.map(msgpack.packb),
    st.tuples(
        st.integers(codec.SCHEMA - 1, codec.SCHEMA),
        st.sampled_from([operation.request.__name__ for operation in OPERATIONS.values()]),
        plain,
    ).map(msgpack.packb),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(headers.map(msgpack.packb) | st.binary(), bodies), min_size=1))
def test_every_message_gets_a_reply(service, messages):
    sender = Sender(service.endpoint)
    for header, body in messages:
        sender.send([header, body])
    sender.finish()
    assert sender.replied == sender.sent


def test_the_codec_returns_a_record_or_a_record_error_for_any_bytes(soak):
    chance, data = random.Random(1), codec.encode(finished())
    for _ in range(20_000 if soak else 1000):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with suppress(RecordError):
            codec.decode(SlotResult, bytes(damaged))
