"""Clients that are closed while they are at work, and clients that are never closed."""

import asyncio
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from buffer import AsyncBufferClient, BufferClient
from r3l.errors import ClientClosed, R3LError

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


def test_a_process_that_forgets_its_clients_ends_at_once(serve) -> None:
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
    assert f"the forgotten one of the buffer at {served.endpoint} was not closed" in warned[0]


def test_a_client_is_closed_under_the_requests_of_other_threads(serve) -> None:
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
            thread.join(20)
    assert len(ended) == 80
    assert str(ended[0]) == f"shared of the buffer at {served.endpoint} was closed: no draw"


def test_a_client_of_an_event_loop_is_closed_under_its_requests(serve) -> None:
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

    asyncio.run(asyncio.wait_for(closed_while_drawing(), 60))
