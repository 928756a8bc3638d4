"""Clients that are closed while they are at work, and clients that are never closed."""

import asyncio
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from buffer import AsyncBufferClient, BufferClient, Wait
from buffer.client import clients
from buffer.wire.messages import REQUESTS_IN_FLIGHT
from r3l.errors import BufferUnavailable, ClientClosed, R3LError, StoreError
from r3l.records import GroupPlan

ROOT = Path(__file__).parents[3]

FORGETS = """
import gc, sys, threading, time
from buffer import BufferClient

def forgets():
    BufferClient(sys.argv[1], name="the forgotten one").stats()

forgets()
gc.collect()
kept = BufferClient(sys.argv[1], name="the kept one")
kept.stats()
drawing = BufferClient(sys.argv[1], name="the drawing one")
threading.Thread(target=drawing.draw, args=(1, 0), kwargs={"wait_s": 600.0}, daemon=True).start()
time.sleep(0.3)
raise RuntimeError(f"the end, with {kept.name}")
"""


def test_a_process_with_unclosed_clients_ends_at_once(serve) -> None:
    served = serve()
    done = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", FORGETS, served.endpoint],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 1 and "RuntimeError: the end, with the kept one" in done.stderr
    warned = [line for line in done.stderr.splitlines() if "ResourceWarning: the " in line]
    assert len(warned) == 1, done.stderr
    assert "the forgotten one" in warned[0] and f"{served.endpoint} was not closed" in warned[0]


def test_a_client_can_be_closed_during_requests_of_other_threads(serve) -> None:
    served, ended = serve(), list[R3LError]()

    def ask(client: BufferClient, wait_s: float) -> None:
        with pytest.raises(ClientClosed) as caught:
            while True:
                client.draw(1, 0, wait_s=wait_s)
        ended.append(caught.value)

    for number in range(40):
        client = BufferClient(served.endpoint, name="shared")
        waits = (0.0, 600.0) if number % 2 else (0.0, 0.0)
        threads = [threading.Thread(target=ask, args=(client, wait), daemon=True) for wait in waits]
        for thread in threads:
            thread.start()
        time.sleep(random.random() * 0.02)
        client.close()
        for thread in threads:
            thread.join(120)
    assert len(ended) == 80
    said = str(ended[0])
    assert "shared" in said and f"{served.endpoint} was closed" in said and "draw" in said


def test_an_async_client_can_be_closed_during_its_requests(serve) -> None:
    served = serve()

    async def closed_while_drawing() -> None:
        client = AsyncBufferClient(served.endpoint)
        draws = [asyncio.create_task(client.draw(1, 0, wait_s=600.0)) for _ in range(3)]
        await client.stats()
        await client.close()
        ends = await asyncio.gather(*draws, return_exceptions=True)
        assert [type(end) for end in ends] == [ClientClosed] * 3
        with pytest.raises(ClientClosed):
            await client.stats()

    asyncio.run(asyncio.wait_for(closed_while_drawing(), 120))


@pytest.mark.system
def test_a_client_queues_requests_beyond_its_limit(serve):
    served = serve()

    async def ask() -> list[object]:
        async with AsyncBufferClient(served.endpoint) as client:
            draws = (
                client.draw(1, 0, consumer=f"c{n}", wait_s=0.2)
                for n in range(2 * REQUESTS_IN_FLIGHT)
            )
            return await asyncio.gather(*draws)

    assert asyncio.run(ask()) == [None] * (2 * REQUESTS_IN_FLIGHT)


@pytest.mark.system
@pytest.mark.parametrize("kind", [BufferClient, AsyncBufferClient])
def test_a_draw_that_waits_leaves_a_slow_service_most_of_its_time(serve, monkeypatch, kind) -> None:
    served, asked, exchange = serve(), list[float](), kind._exchange

    def slow(client, call):
        asked.append(time.monotonic())
        time.sleep(0.05)
        return exchange(client, call)

    monkeypatch.setattr(kind, "_exchange", slow)

    async def draw() -> None:
        async with AsyncBufferClient(served.endpoint) as client:
            assert await client.draw(1, 0, wait_s=2.5) is None

    if kind is AsyncBufferClient:
        asyncio.run(draw())
    else:
        with BufferClient(served.endpoint) as client:
            assert client.draw(1, 0, wait_s=2.5) is None
    assert len(asked) <= 7  # with a pause of 0.05 s they are 25


@pytest.mark.system
def test_coroutines_share_one_client(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=8", "buffer.max_staleness=0")

    async def actors():
        async with AsyncBufferClient(served.endpoint) as client:
            await client.add_tasks(tasks(8))
            plan = GroupPlan(1)
            leases = await asyncio.gather(*(client.lease(f"a{i}", 0, plan) for i in range(8)))
            acks = await asyncio.gather(
                *(client.put(lease.group_id, f"a{i}", done()) for i, lease in enumerate(leases))
            )
            assert isinstance(await client.lease("late", 0, plan), Wait)
            return {lease.group_id for lease in leases}, acks

    groups, acks = asyncio.run(actors())
    assert len(groups) == 8 and all(ack.new and ack.complete for ack in acks)


@pytest.mark.system
def test_a_missing_reply_names_the_endpoint_and_the_wait():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
    with (
        BufferClient(endpoint, timeout_s=0.3) as client,
        pytest.raises(BufferUnavailable, match=endpoint),
    ):
        client.stats()

    async def ask():
        async with AsyncBufferClient(endpoint, name="a notebook", timeout_s=0.3) as client:
            await client.stats()

    with pytest.raises(BufferUnavailable, match=r"a notebook .* to stats"):
        asyncio.run(ask())


@pytest.mark.system
def test_clients_of_a_silent_service_say_who_waits_until_it_replies_again(
    serve, tasks, done, monkeypatch, caplog
):
    monkeypatch.setattr(clients, "WARN_AFTER_S", 1.5)
    served, said = serve(), list[str]()
    caplog.set_level("WARNING")
    with BufferClient(served.endpoint, name="learner", timeout_s=60) as client:
        client.stats()
        client.silent = said.append
        served.process.send_signal(signal.SIGSTOP)
        threading.Timer(3.5, served.process.send_signal, [signal.SIGCONT]).start()
        client.add_tasks(tasks(1))
    assert said[0].startswith("learner waits ") and f"{served.endpoint}: no reply to add" in said[0]
    lines = [line.removeprefix(f"the buffer at {served.endpoint} ") for line in caplog.messages]
    assert lines[0] in said and lines[-1].startswith("replies again, after ")

    async def ask() -> None:
        async with AsyncBufferClient(served.endpoint, name="a.1", timeout_s=60) as client:
            served.process.send_signal(signal.SIGSTOP)
            threading.Timer(3.5, served.process.send_signal, [signal.SIGCONT]).start()
            await client.stats()

    caplog.clear()
    asyncio.run(ask())
    assert "a.1 waits for the buffer" in caplog.text and "replies again" in caplog.text


@pytest.mark.system
def test_a_wait_for_a_silent_service_can_be_ended():
    with BufferClient("tcp://127.0.0.1:1", timeout_s=600) as client:

        def give_up(line: str) -> None:
            raise InterruptedError(line)

        client.silent = give_up
        with pytest.raises(InterruptedError, match="to stats for 1 s"):
            client.stats()


@pytest.mark.parametrize("timeout_s", [60.0, 0.05])
def test_a_learners_client_waits_while_the_disk_of_the_service_is_full(
    serve, monkeypatch: pytest.MonkeyPatch, timeout_s: float
) -> None:
    served, told, read = serve(), list[str](), BufferClient._read
    monkeypatch.setattr(clients, "DISK_S", 0.1)
    full = [StoreError("store /s: mdb_txn_commit: No space left on device", cause="disk")] * 3

    def refused(client: BufferClient, call: Any) -> Any:
        if full:
            raise full.pop()
        return read(client, call)

    with BufferClient(served.endpoint, name="learner", timeout_s=timeout_s) as client:
        monkeypatch.setattr(BufferClient, "_read", refused)
        with pytest.raises(StoreError):
            client.stats()
        client.waits_for_disk, client.silent = True, told.append
        if timeout_s < 1:
            with pytest.raises(BufferUnavailable, match="for room on its disk"):
                client.stats()
        else:
            client.stats()
            assert len(told) == 2 and "until the buffer's disk has room" in told[0]
        full.append(StoreError("store /s: the map is used up", cause="disk"))
        full[:] = full[-1:]
        with pytest.raises(StoreError, match="used up"):
            client.stats()
