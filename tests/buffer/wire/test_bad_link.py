"""Over a link that damages, drops, repeats and reorders bytes every call ends within its limit."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from buffer import AsyncBufferClient, BufferClient
from buffer.wire.curve_keys import generate
from r3l.errors import R3LError
from r3l.records import Task
from tests.buffer.fakes import until
from tests.buffer.wire.bad_link import BadLink

pytestmark = pytest.mark.system
BAD_S = 60.0 if os.environ.get("R3L_SOAK") else 4.0
TIMEOUT_S = 3.0


class Calls:
    """The longest call, how often one had a reply or failed, and the last replies in a row."""

    def __init__(self) -> None:
        self.longest_s, self.replies, self.failures, self.in_a_row = 0.0, 0, 0, 0

    def took(self, began: float, failed: bool) -> None:
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        self.failures += failed
        self.replies += not failed
        self.in_a_row = 0 if failed else self.in_a_row + 1


@pytest.fixture(params=["open", "with keys"])
def opened(request: Any, serve: Any, tmp_path: Path) -> tuple[str, Path | None]:
    """The address of a service, and the keys of a client that may add tasks."""
    if request.param == "open":
        return serve().endpoint, None
    service, _, learner = generate(tmp_path / "keys")
    return serve("tcp://127.0.0.1:0", "--keys", service).endpoint, learner


def blocking(endpoint: str, keys: Path | None, until: Callable[[], bool], calls: Calls) -> None:
    with BufferClient(endpoint, timeout_s=TIMEOUT_S, keys=keys) as client:
        while not until():
            began, failed = time.monotonic(), False
            try:
                client.add_tasks([Task(f"t{calls.replies}", "workshop", 0)])
                client.stats()
            except R3LError:
                failed = True
            calls.took(began, failed)
        closing = time.monotonic()
    calls.longest_s = max(calls.longest_s, time.monotonic() - closing)


async def at_once(
    endpoint: str, keys: Path | None, until: Callable[[], bool], calls: Calls
) -> None:
    async with AsyncBufferClient(endpoint, timeout_s=TIMEOUT_S, keys=keys) as client:

        async def ask() -> None:
            while not until():
                began, failed = time.monotonic(), False
                try:
                    await client.stats()
                except R3LError:
                    failed = True
                calls.took(began, failed)
                await asyncio.sleep(0.01)

        await asyncio.gather(*(ask() for _ in range(8)))


def test_after_damaged_bytes_on_an_idle_connection_a_call_has_its_reply_and_close_returns(
    opened: tuple[str, Path | None],
) -> None:
    endpoint, keys = opened
    with (
        BadLink(endpoint) as link,
        BufferClient(link.endpoint, timeout_s=60, keys=keys) as client,
    ):
        link.bad = False
        client.stats()
        link.spoil()
        time.sleep(0.5)
        replies = list[object]()
        thread = threading.Thread(target=lambda: replies.append(client.stats()), daemon=True)
        thread.start()
        thread.join(timeout=120)
        assert len(replies) == 1
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(timeout=60)
        assert not closing.is_alive()


def test_every_call_over_a_bad_link_ends_and_afterwards_all_have_replies(
    opened: tuple[str, Path | None],
) -> None:
    endpoint, keys = opened
    first, second, ended = Calls(), Calls(), threading.Event()
    with BadLink(endpoint) as link:
        threads = [
            threading.Thread(
                target=blocking, args=(link.endpoint, keys, ended.is_set, first), daemon=True
            ),
            threading.Thread(
                target=lambda: asyncio.run(at_once(link.endpoint, keys, ended.is_set, second)),
                daemon=True,
            ),
        ]
        for thread in threads:
            thread.start()
        time.sleep(BAD_S)
        until(lambda: link.harmed > 10)
        link.bad = False
        first.in_a_row = second.in_a_row = 0
        until(lambda: first.in_a_row > 50 and second.in_a_row > 50)
        ended.set()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)
    for calls in (first, second):
        assert calls.longest_s < 2 * TIMEOUT_S + 10
    print(f"{link.harmed} pieces harmed, {first.__dict__}, {second.__dict__}")
