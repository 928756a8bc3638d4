"""The weight publisher where something goes wrong with it."""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import zmq

from actors.weights.subscriber import WeightSubscriber
from buffer.wire.access import allow_files
from learner.publishing import publisher, weight_copy, weight_door
from learner.publishing.publisher import WeightPublisher
from r3l.codec import pack, unpack
from r3l.errors import UserError, WeightsError
from r3l.run.process.memory import STEADY_MEMORY
from r3l.weights.journal import Journal
from tests.buffer.fakes import until
from tests.buffer.wire.strangers import MIB, Memory, connect, flood, frame


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_whose_thread_has_ended_refuses_new_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = WeightPublisher("tcp://127.0.0.1:0")
    monkeypatch.setattr(serving, "_handle", None)  # what it is called with does not matter
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.setsockopt(zmq.LINGER, 0)
        asking.connect(serving.endpoint)
        asking.send(b"")
        serving._thread.join(timeout=120)
    with pytest.raises(WeightsError, match="has ended"):
        serving.publish(1, [("w", torch.zeros(2))])
    serving.close()


def test_unreadable_keys_open_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_door.zmq, "Context", lambda: pytest.fail("a context was made"))
    with pytest.raises(UserError, match="cannot be read"):
        WeightPublisher("tcp://127.0.0.1:0", keys=Path("/no/such/service.json"))


PUBLISH = """
import itertools, sys, time, torch
from learner.publishing.publisher import WeightPublisher
from r3l.codec import pack, unpack
publisher = WeightPublisher("tcp://127.0.0.1:0")
print(publisher.endpoint, flush=True)
for version in itertools.count(1):
    publisher.publish(version, [("w", torch.full((1000,), float(version)))])
    open("/dev/null").close()  # as a checkpoint would be
    time.sleep(0.1)
"""


@pytest.fixture
def publishing() -> Iterator[tuple[psutil.Process, str]]:
    """A process that publishes, with the usual limit of open files, and its endpoint."""
    process = subprocess.Popen(
        [sys.executable, "-c", PUBLISH],
        stdout=subprocess.PIPE,
        text=True,
        env=STEADY_MEMORY | os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096)),
    )
    assert process.stdout is not None
    yield psutil.Process(process.pid), process.stdout.readline().strip()
    assert process.poll() is None, "it has ended"
    process.kill()
    process.wait()


def newest(endpoint: str) -> int:
    """The version that a subscriber gets."""

    async def ask() -> int:
        subscriber = WeightSubscriber(endpoint, timeout_s=60)
        try:
            manifest = await subscriber.latest()
            assert manifest is not None
            return manifest.version
        finally:
            subscriber.close()

    return asyncio.run(ask())


@pytest.mark.system
def test_a_thousand_silent_connections_leave_the_learner_its_files(
    publishing: tuple[psutil.Process, str],
) -> None:
    process, endpoint = publishing
    allow_files(4096)
    host, port = endpoint.removeprefix("tcp://").split(":")
    silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(1000)]
    until(lambda: process.num_fds() < 700)  # 512 silent ones may stay for a while
    before = newest(endpoint)
    until(lambda: newest(endpoint) > before)  # it still publishes
    for stranger in silent:
        stranger.close()


@pytest.mark.system
@pytest.mark.parametrize("body", [bytes(4000), b""], ids=["large frames", "empty frames"])
def test_a_request_without_end_takes_none_of_the_learners_memory(
    publishing: tuple[psutil.Process, str], body: bytes
) -> None:
    process, endpoint = publishing
    memory = Memory(process.pid)
    strangers = [connect(endpoint) for _ in range(4)]
    data = frame(body) * (MIB // len(frame(body)))
    assert flood(strangers, data, 50 * len(data)) == 4
    assert memory.grown() < 200
    # glibc keeps the free end of a thread's heap, up to 64 MiB, whatever is trimmed
    memory.calms_down(100)
    assert newest(endpoint) >= 1


def test_one_older_set_is_kept_for_those_who_ask_for_it_and_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "KEEP_S", 3600.0)
    serving = WeightPublisher("tcp://127.0.0.1:0")
    asking = zmq.Context.instance().socket(zmq.DEALER)
    asking.setsockopt(zmq.LINGER, 0)
    asking.connect(serving.endpoint)

    def ask(**request: object) -> dict[str, object]:
        asking.send(pack({"rid": 1, "origin": serving.origin, "have": -1} | request))
        assert asking.poll(60_000)
        return unpack(asking.recv_multipart()[0])

    def chunk(version: int, *, keep: bool) -> dict[str, object]:
        return ask(op="chunk", version=version, index=0, at=0, size=4, keep=keep)

    def publish(version: int) -> None:
        serving.publish(version, [("w", torch.full((9,), float(version)))])

    publish(1)
    assert chunk(1, keep=False)["lengths"] == [64]
    publish(2)
    assert chunk(1, keep=False)["gone"] and serving._kept is None
    assert "gone" not in chunk(2, keep=True)
    publish(3)
    publish(4)
    assert chunk(2, keep=True)["lengths"] == [64] and chunk(3, keep=True)["gone"]
    ask(op="latest")  # it has what it asked for
    until(lambda: serving._kept is None)
    assert chunk(2, keep=True)["gone"]
    assert "gone" not in chunk(4, keep=True)
    publish(5)
    assert serving._kept is not None
    monkeypatch.setattr(publisher, "KEEP_S", 0.0)
    until(lambda: serving._kept is None)
    asking.close()
    serving.close()


class Paused:
    """Chunks are compared only once they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may, assemble = threading.Event(), publisher.assemble

        def wait_and_assemble(*given: Any) -> Any:
            assert self.may.wait(60)
            return assemble(*given)

        monkeypatch.setattr(publisher, "assemble", wait_and_assemble)


def test_a_step_may_change_its_weights_while_they_are_published_and_waits_with_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused = Paused(monkeypatch)
    serving = WeightPublisher("tcp://127.0.0.1:0")
    weights = torch.full((1000,), 1.0)
    metrics = serving.begin(1, [("w", weights)])
    assert metrics.keys() == {"copy_s"} and not serving.published() and not serving.metrics
    weights.fill_(2.0)  # the next step
    paused.may.set()
    serving.begin(2, [("w", weights)])
    assert serving.metrics["full_bytes"] == 4032  # of the first version, which had to end
    assert serving.published(60)
    manifest, chunk = serving._manifest, serving._chunks[0]
    assert manifest is not None and chunk is not None and manifest.version == chunk.version == 2
    assert chunk.data.view("<f4")[:1000].tolist() == [2.0] * 1000
    serving.close()


def test_a_version_that_cannot_be_published_ends_the_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = WeightPublisher("tcp://127.0.0.1:0")
    weights = [("w", torch.zeros(2))]
    for wait in (lambda: serving.published(60), lambda: serving.begin(2, weights)):
        with monkeypatch.context() as patched:
            patched.setattr(publisher, "assemble", None)
            serving.begin(1, weights)
            with pytest.raises(WeightsError, match="weights 1: could not be published"):
                wait()
    serving.publish(3, weights)
    assert serving._manifest is not None and serving._manifest.version == 3
    serving.close()


def test_what_was_begun_is_in_the_journal_when_the_publisher_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    paused = Paused(monkeypatch)
    journal = Journal(tmp_path)
    serving = WeightPublisher("tcp://127.0.0.1:0", journal=journal)
    serving.begin(1, [("w", torch.ones(9))])
    threading.Timer(0.2, paused.may.set).start()
    serving.close()
    assert journal.held() == [1]


def test_without_memory_for_a_copy_a_version_is_published_in_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_copy, "free_memory", lambda: 0)
    serving = WeightPublisher("tcp://127.0.0.1:0")
    serving.begin(1, [("w", torch.ones(9))])
    assert serving.metrics["full_bytes"] == 64 and serving.published()
    serving.close()
