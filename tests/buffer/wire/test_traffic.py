"""What strangers and hostile clients cost in memory, measured on real services."""

import socket
import time
from collections import Counter

import pytest

from buffer import BufferClient
from buffer.wire.curve_keys import generate
from buffer.wire.sockets import Received
from buffer.wire.traffic import CHECK_S, LOOKS, Limits, Traffic
from r3l.records import GroupPlan
from r3l.run.process.memory import STEADY_MEMORY
from tests.buffer.fakes import calls, full_result, until
from tests.buffer.wire.strangers import MIB, Memory, connect, flood, frame

pytestmark = pytest.mark.system


def test_peers_without_a_key_are_cut_off_before_they_take_memory(serve, tmp_path):
    service, client_keys, _ = generate(tmp_path / "keys")
    served = serve("tcp://127.0.0.1:0", "--keys", service)
    memory = Memory(served.process.pid)
    strangers = [connect(served.endpoint, b"CURVE") for _ in range(10)]
    for stranger in strangers:
        stranger.sendall(b"\x06" + (16 * MIB).to_bytes(8, "big"))  # a command of 16 MiB
    flood(strangers, bytes(MIB), 16 * MIB - 1)
    memory.calms_down(60)
    with BufferClient(served.endpoint, keys=client_keys) as client:
        until(lambda: client.stats().refused.get("handshake_too_large") == 10)


@pytest.mark.parametrize(
    ("body", "mib"), [(bytes(MIB), 700), (b"", 30)], ids=["large frames", "empty frames"]
)
def test_a_message_without_end_is_cut_off(serve, body, mib):
    served = serve("tcp://127.0.0.1:0", "buffer.memory_gib=0.25", env=STEADY_MEMORY)
    memory = Memory(served.process.pid)
    data = frame(body) * max(1, MIB // len(frame(body)))
    stranger = connect(served.endpoint)
    closed = 0
    for _ in range(10):
        closed += flood([stranger], data, mib * MIB // 10 // len(data) * len(data))
        assert memory.grown() < 600
        if closed:
            break
    assert closed == 1
    memory.calms_down(100)
    with BufferClient(served.endpoint) as client:
        until(lambda: client.stats().refused)
        assert client.stats().refused.keys() <= {"message_too_large", "too_much_memory"}


def test_many_unfinished_messages_are_bounded_together(serve):
    served = serve(env=STEADY_MEMORY)
    memory = Memory(served.process.pid)
    strangers = [connect(served.endpoint) for _ in range(14)]
    for stranger in strangers:
        stranger.sendall(b"\x03" + (16 * MIB).to_bytes(8, "big"))
    data = bytes(MIB)
    flood(strangers, data, 16 * MIB)
    for stranger in strangers:
        stranger.settimeout(30)
    flood(strangers, frame(data), 16 * len(frame(data)))  # 448 MiB in all
    assert memory.grown() < 400
    with BufferClient(served.endpoint) as client:
        until(lambda: client.stats().refused.get("messages_too_large", 0) >= 5)
    for stranger in strangers:
        stranger.close()
    memory.calms_down(100)


def test_replies_that_nobody_reads_are_bounded_together(serve, tasks):
    served = serve("tcp://127.0.0.1:0", "buffer.memory_gib=0.25")
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.add_tasks(tasks(4))
        client.set_version(9)
        for _ in range(4):
            lease = client.lease("a", 9, GroupPlan(1))
            client.put(lease.group_id, "a", full_result(tokens=1_000_000))
        memory = Memory(served.process.pid)
        asking = [connect(served.endpoint) for _ in range(24)]
        for number, stranger in enumerate(asking):
            stranger.sendall(b"".join(query(number)))

        def refused():
            assert memory.grown() < 600
            return client.stats().refused.get("too_much_memory", 0) >= 1

        end = time.monotonic() + 10
        until(lambda: refused() and time.monotonic() > end)
    for stranger in asking:
        stranger.close()


def query(number):
    """A request for all groups on the wire."""
    header, arguments = calls.query(limit=100).frames(f"q{number}")
    return frame(header), frame(arguments, more=False)


def test_a_connection_is_counted_by_what_was_not_read():
    """Through the sockets of one process."""
    listening = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listening.getsockname())
    taker, _ = listening.accept()
    traffic = Traffic(Limits(connection=100_000, total=1 << 30), encrypted=False)
    traffic.opened(taker.fileno())
    taker.sendall(bytes(100))  # a greeting, and what lets it in
    now = time.monotonic()

    def bring(size):
        nonlocal now
        sender.sendall(bytes(size))
        taker.recv(size, socket.MSG_WAITALL)
        now += 2 * CHECK_S
        return traffic.check(now)

    for _ in range(30):
        assert not bring(10 * 9 + 81_000)
        traffic.mark_read(
            Received(b"c", "learner", taker.fileno(), [bytes(81_000)] + [b"1234567"] * 9)
        )
    assert not bring(60_000) and 59_000 < traffic.unread() <= 60_100
    assert bring(60_000) == {"message_too_large": 1}
    assert sender.recv(200) == bytes(100) and sender.recv(1) == b""  # it was shut down
    assert not bring(0) and traffic.unread() == 0
    for end in (sender, taker, listening):
        end.close()


def test_bytes_that_were_read_at_once_are_counted_within_a_round():
    """The kernel tells nothing of them, and no message is complete."""
    listening = socket.create_server(("127.0.0.1", 0))
    traffic, pairs = Traffic(Limits(connection=50_000, total=1 << 30), encrypted=False), []
    for _ in range(2 * LOOKS):
        sender = socket.create_connection(listening.getsockname())
        pairs.append((sender, listening.accept()[0]))
        pairs[-1][1].sendall(bytes(100))
        traffic.opened(pairs[-1][1].fileno())
    now = time.monotonic() + CHECK_S
    assert not traffic.check(now)  # the handshakes are done
    sender, taker = pairs[-1]
    for _ in range(6):
        sender.sendall(bytes(10_000))
        taker.recv(10_000, socket.MSG_WAITALL)
    found = Counter[str]()
    for n in range(1, 3):
        found += traffic.check(now + n * CHECK_S)
    assert found == {"message_too_large": 1} and sender.recv(200) == bytes(100)
    for end in (*(end for pair in pairs for end in pair), listening):
        end.close()
    traffic.close()
