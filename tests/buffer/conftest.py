"""Fixtures of the buffer's tests; their classes are in fakes.py."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import zmq

from buffer import BufferClient
from r3l import codec
from r3l.records import SlotResult, Task
from tests.buffer.fakes import Desk, Served, finished


@pytest.fixture(scope="session")
def soak() -> bool:
    """`make soak`: the same tests, with the numbers that take minutes."""
    return bool(os.environ.get("R3L_SOAK"))


@pytest.fixture(scope="session")
def done() -> Callable[..., SlotResult]:
    return finished


@pytest.fixture(scope="session")
def tasks() -> Callable[..., list[Task]]:
    return lambda count, name="t": [Task(f"{name}{i}", "workshop", i) for i in range(count)]


@pytest.fixture
def make_desk(tmp_path) -> Iterator[Callable[..., Desk]]:
    desks = []

    def make(**settings):
        desks.append(Desk(tmp_path / "store", **settings))
        return desks[-1]

    yield make
    for desk in desks:
        desk.store.close()


@pytest.fixture
def desk(make_desk) -> Desk:
    return make_desk()


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:

        def start(bind="tcp://127.0.0.1:0", *options, folder=None, **more):
            served = Served(folder or tmp_path / "store", bind, *options, **more)
            stack.callback(lambda: served.process.poll() is None and served.kill())
            return served

        yield start


@pytest.fixture
def served(serve) -> Served:
    """A service with small steps."""
    return serve("tcp://127.0.0.1:0", "learner.groups_per_step=4", "buffer.max_staleness=1")


@pytest.fixture
def client(served) -> Iterator[BufferClient]:
    """A client of `served`."""
    with BufferClient(served.endpoint, name="test", timeout_s=60) as client:
        yield client


@pytest.fixture
def raw(served) -> Iterator[Callable[..., dict]]:
    """Sends frames to `served`; returns the header of the reply."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(served.endpoint)

    def ask(*frames):
        dealer.send_multipart(list(frames))
        assert dealer.poll(60_000), "no reply"
        return codec.unpack(dealer.recv_multipart()[0])

    yield ask
    context.destroy(linger=0)
