"""Hostile requests in three dialects get replies or named refusals, and leave nothing behind."""

import asyncio

import httpx

from actors.gateway.web_app import WebApp
from benchmarks.gateway_fuzz import sessions_of
from benchmarks.gateway_requests import DIALECTS, fault_of, hostile_requests
from r3l.run.actor_metrics import ActorMetrics

NEIGHBOUR = {"messages": [{"role": "user", "content": "station 0 has drum"}]}


def test_requests_differ_and_are_the_same_for_a_seed() -> None:
    some = [*hostile_requests(1, 200)]
    assert some == [*hostile_requests(1, 200)] != [*hostile_requests(2, 200)]
    assert {asked.path for asked in some} == {*DIALECTS}
    assert len({asked.content for asked in some}) > 150


def test_a_wrong_answer_is_found() -> None:
    assert fault_of(200, b"{}", False) == fault_of(400, b'{"error": {"message": "a"}}', False) == ""
    for status, content in ((500, b"Internal"), (400, b"{}"), (200, b"oops"), (302, b"{}")):
        assert fault_of(status, content, False)
    assert fault_of(200, b"data: 1\n\n", True)


def test_every_hostile_request_gets_a_reply_or_a_named_refusal() -> None:
    metrics, statuses = ActorMetrics(), set[int]()

    async def run() -> None:
        *hostile, honest = sessions_of(5, 512, metrics)
        sessions = {session.key: session for session in (*hostile, honest)}
        async with (
            WebApp(sessions, counts=metrics.agent).served("127.0.0.1", 0) as url,
            httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client,
        ):
            for number, session in enumerate(hostile):
                key = {"Authorization": f"Bearer {session.key}"}
                for asked in hostile_requests(number, 100, longest=1 << 17):
                    headers = key | asked.headers
                    got = await client.post(asked.path, content=asked.content, headers=headers)
                    streamed = got.headers["content-type"].startswith("text/event-stream")
                    why = fault_of(got.status_code, got.content, streamed)
                    assert not why, f"{why} <- {asked.path} {asked.content[:500]!r}"
                    statuses.add(got.status_code)
                key = {"Authorization": f"Bearer {honest.key}"}
                got = await client.post("/v1/chat/completions", json=NEIGHBOUR, headers=key)
                assert got.status_code == 200 and "yes" in got.text
        for session in hostile:
            assert session.held == session.open_requests == 0
            assert session.problem is None and session.result is None

    asyncio.run(run())
    assert statuses == {200, 400}
    assert metrics.agent["refused"] > 100 and metrics.agent["connections_closed"] == 0
