"""What strangers without a key can do with a connection: nothing that lasts or grows."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx
import pytest

from actors.gateway import connections as module
from actors.gateway.web_app import WebApp
from tests.actors.gateway.test_session import session_of
from tests.actors.gateway.test_web_app import BODY
from tests.r3l.fakes import ScriptedPolicy

PATH = "/v1/chat/completions"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
Open = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
Test = Callable[[Open, httpx.AsyncClient, Counter[str]], Awaitable[None]]


def attacked(test: Test) -> None:
    """Runs a test against a gateway; then an honest client must still be answered."""

    async def run() -> None:
        session, counts = session_of(ScriptedPolicy(lambda text: "yes")), Counter[str]()
        headers = {"Authorization": f"Bearer {session.key}"}
        app = WebApp({session.key: session}, counts=counts)
        async with (
            app.served("127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client,
        ):
            port = urlsplit(url).port
            await test(lambda: asyncio.open_connection("127.0.0.1", port), client, counts)
            assert (await client.post(PATH, json=BODY)).status_code == 200

    asyncio.run(run())


async def sent(opened: Open, *parts: bytes, times: int = 1) -> bytes:
    """Sends parts, some of them many times; returns what comes back until the server closes."""
    reading, writing = await opened()
    try:
        for part in parts:
            for _ in range(times if part is parts[-1] else 1):
                writing.write(part)
                await writing.drain()
        return await reading.read()
    except ConnectionError:
        return b""
    finally:
        writing.close()


HEADER = b"x: " + b"y" * 8000 + b"\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n"


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((HEAD, HEADER), "head"),
        ((HEAD, b"x: ", b"y" * 8000), "line of a head"),
        ((HEAD, b"x: y\r\n"), "lines of a head"),
        ((b"GET /", b"a" * 8000), "path"),
        ((CHUNKED, HEADER), "trailers"),
        ((HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1;" + b"e" * 8000), "chunk"),
        ((b"\x16\x03\x01" * 100, b"\x00" * 8000), "no HTTP"),
        ((b"\r\n" * 100, b"\r\n" * 4000), "empty lines"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_heads_and_trailers_without_end_are_cut_off(parts: tuple[bytes, ...], kind: str) -> None:
    async def test(opened: Open, client: httpx.AsyncClient, counts: Counter[str]) -> None:
        async with asyncio.timeout(30):
            said = await sent(opened, *parts, times=100_000)
        assert said == b"" or b" 400 " in said or b" 401 " in said

    attacked(test)


def test_silent_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.2)
    monkeypatch.setattr(module, "SWEEP_S", 0.05)

    async def test(opened: Open, client: httpx.AsyncClient, counts: Counter[str]) -> None:
        key = client.headers["authorization"].encode()
        unfinished = HEAD + b"Authorization: " + key + b"\r\ncontent-length: 99\r\n\r\n{"
        for begun in (b"", HEAD, unfinished):
            async with asyncio.timeout(30):
                assert b"200" not in await sent(opened, begun)
        assert counts["connections_closed"] == 3

    attacked(test)


def test_a_request_that_is_answered_late_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_S", 0.1)
    monkeypatch.setattr(module, "SWEEP_S", 0.02)

    class Late(ScriptedPolicy):
        async def sample(self, *given: object) -> object:  # type: ignore[override]
            await asyncio.sleep(0.5)
            return await super().sample(*given)  # type: ignore[arg-type]

    async def run() -> None:
        session = session_of(Late(lambda text: "yes"))
        headers = {"Authorization": f"Bearer {session.key}"}
        async with (
            WebApp({session.key: session}).served("127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as client,
        ):
            assert (await client.post(PATH, json=BODY)).status_code == 200

    asyncio.run(run())


def test_the_oldest_connection_without_a_request_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "most_connections", lambda: 20)

    async def test(opened: Open, client: httpx.AsyncClient, counts: Counter[str]) -> None:
        many = [await opened() for _ in range(100)]
        assert (await client.post(PATH, json=BODY)).status_code == 200
        async with asyncio.timeout(30):
            for reading, _ in many[:80]:
                assert await reading.read() == b""
        assert counts["connections_closed"] in (80, 81)
        for _, writing in many:
            writing.close()

    attacked(test)


def test_what_is_no_http_is_counted_and_seldom_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def test(opened: Open, client: httpx.AsyncClient, counts: Counter[str]) -> None:
        upgrade = HEAD + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n"
        for _ in range(30):
            await sent(opened, b"what\r\n\r\n")
            reading, writing = await opened()
            writing.write(upgrade)
            assert b" 401 " in await reading.readline()
            writing.close()
        assert counts["connections_closed"] >= 30

    with caplog.at_level(logging.WARNING):
        attacked(test)
    assert len(caplog.records) <= 4 * module.MOST_LOGGED


def test_garbage_after_a_request_ends_its_connection_alone() -> None:
    async def test(opened: Open, client: httpx.AsyncClient, counts: Counter[str]) -> None:
        key = client.headers["authorization"].encode()
        whole = HEAD + b"Authorization: " + key + b"\r\ncontent-length: 2\r\n\r\n{}"
        async with asyncio.timeout(30):
            for garbage in (b"\0\0\r\n\r\n", b"GET\r\n\r\n", b"\xff" * 70_000):
                said = await sent(opened, whole + garbage)
                assert said == b"" or b" 400 " in said

    attacked(test)
