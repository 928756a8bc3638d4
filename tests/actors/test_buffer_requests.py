"""An actor's requests to the buffer, repeated until it can serve them."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from actors.buffer_requests import BufferRequests, GroupPuts
from buffer import Lease, PutAck, Wait
from buffer.client.sent_progress import SentProgress
from r3l.errors import (
    BufferUnavailable,
    EngineFailed,
    EngineSick,
    LeaseLost,
    LimitExceeded,
    SickResult,
    StoreError,
)
from r3l.records import GroupPlan, ReflectionRecord, SlotResult, Task
from r3l.run.actor_metrics import ActorMetrics

LEASE = Lease("g1", Task("t", "corridor", 0), "train", "", GroupPlan(3), (), 60.0)
FAILED = SlotResult(0, "failed", cause="engine_request")
SKIPPED = SlotResult(0, "skipped", cause="not_triggered")


def thought(name: str) -> ReflectionRecord:
    return ReflectionRecord(name, "x", np.zeros(1, np.int32), np.zeros(1, np.float32))


UNAVAILABLE = BufferUnavailable("no reply", endpoint="tcp://x", waited_s=1.0)
FULL = StoreError("the disk is full", cause="disk")


class Client:
    """Replies to each request with the next of `replies`: raised if it is an error."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.sent = list(replies), list[tuple[Any, ...]]()
        self.slow = asyncio.Event()
        self.slow.set()

    async def _reply(self, *request: Any) -> Any:
        self.sent.append(request)
        await self.slow.wait()
        reply = self.replies.pop(0) if self.replies else None
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def lease(self, actor: str, version: int, *, wait_s: float) -> Any:
        return await self._reply("lease", version)

    async def put(self, group_id: str, actor: str, made: Any, fingerprint: Any) -> Any:
        return await self._reply("put", *map(told, made)) or PutAck(1, False)

    async def put_partial(
        self, group_id: str, actor: str, result: SlotResult, *, since: bytes | None, serial: int
    ) -> Any:
        return await self._reply("partial", group_id)

    async def renew(self, groups: list[str], actor: str, metrics: dict[str, float]) -> Any:
        return await self._reply("renew", metrics["buffer_unavailable"])

    async def release(self, groups: list[str], actor: str) -> Any:
        return await self._reply("release", *sorted(groups))


def told(made: Any) -> str:
    """A reflection by its name, a result by its slot, status and cause."""
    if isinstance(made, ReflectionRecord):
        return made.name
    return f"{made.slot} {made.status} {made.cause}".rstrip()


def requests(client: Client) -> BufferRequests:
    owner: Any = client
    return BufferRequests("a.1", owner, ActorMetrics())


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.buffer_requests.STORE_FULL_S", 0.01)
    monkeypatch.setattr("actors.buffer_requests.LEAVE_S", 0.1)


def test_a_lease_is_requested_with_the_current_version_until_it_is_granted() -> None:
    async def scenario() -> None:
        client, versions = Client(UNAVAILABLE, FULL, Wait("later", 0.01), LEASE), iter(range(9))
        asking = requests(client)
        assert await asking.lease(lambda: next(versions)) is LEASE
        assert client.sent == [("lease", version) for version in range(4)]
        assert asking.metrics.buffer_unavailable == asking.metrics.store_full == 1

    asyncio.run(scenario())


def test_a_put_is_repeated_while_the_buffer_is_gone_or_full_and_a_refused_result_once() -> None:
    async def scenario() -> None:
        client = Client(UNAVAILABLE, LimitExceeded("20 bytes; limit 10"), FULL, None)
        asking = requests(client)
        (kept,) = await asking.put("g1", [SKIPPED], None)
        assert told(kept) == "0 failed too_large"
        sent = [result for _, result in client.sent]
        assert sent == ["0 skipped not_triggered"] * 2 + ["0 failed too_large"] * 2
        assert asking.metrics.refused == {"too_large": 1} and asking.results == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("replies", [(LeaseLost("another's"),), (LimitExceeded("g1: 9"),) * 2])
def test_a_lost_lease_and_a_second_refusal_are_raised(replies: tuple[Exception, ...]) -> None:
    async def scenario() -> None:
        with pytest.raises(type(replies[-1])):
            await requests(Client(*replies)).put("g1", [FAILED], None)

    asyncio.run(scenario())


def test_reflections_are_refused_before_the_results_that_are_put_with_them() -> None:
    async def scenario() -> None:
        large = LimitExceeded("20 bytes; limit 10")
        client = Client(large, large, None)
        asking = requests(client)
        kept = await asking.put("g1", [SKIPPED, thought("why"), thought("how")], None)
        assert [*map(told, kept)] == ["0 failed too_large"]
        assert [sent[1:] for sent in client.sent] == [
            ("0 skipped not_triggered", "why", "how"),
            ("0 skipped not_triggered",),
            ("0 failed too_large",),
        ]
        assert asking.metrics.refused == {"too_large": 3}

    asyncio.run(scenario())


def test_what_completes_a_group_is_put_at_its_end_together_with_what_follows() -> None:
    """A complete group takes no reflection: an algorithm may ask after the last attempt."""

    async def scenario() -> None:
        client = Client()
        lease = Lease("g1", LEASE.task, "train", "", GroupPlan(3), (SKIPPED,), 60.0)
        puts = GroupPuts(requests(client), lease, lambda made: (3, "abc"))
        results = [SlotResult(slot, "skipped", cause="late") for slot in (1, 2)]
        for made in (results[0], thought("why"), results[1], thought("how")):
            assert await puts.put(made) is made
        assert [sent[1:] for sent in client.sent] == [("1 skipped late",), ("why",)]
        assert await puts.rest() == [results[1]] and await puts.rest() == []
        assert client.sent[2:] == [("put", "2 skipped late", "how")]

    asyncio.run(scenario())


def test_a_result_that_is_refused_at_the_end_is_told_as_failed() -> None:
    async def scenario() -> None:
        client = Client(LimitExceeded("20 bytes; limit 10"))
        puts = GroupPuts(requests(client), LEASE, lambda made: None)
        for slot in range(3):
            puts._open.discard(slot)
        await puts.put(SKIPPED)
        assert [*map(told, await puts.rest())] == ["0 failed too_large"]

    asyncio.run(scenario())


def test_a_refused_reflection_fails_its_question_alone() -> None:
    async def scenario() -> None:
        client = Client(LimitExceeded("20 bytes; limit 10"), None)
        puts = GroupPuts(requests(client), LEASE, lambda made: None)
        with pytest.raises(EngineFailed, match="refused a reflection"):
            await puts.put(thought("why"))
        assert await puts.put(SKIPPED) is SKIPPED and puts.busy == 0

    asyncio.run(scenario())


def test_a_put_whose_group_is_cancelled_ends_before_the_actor_leaves() -> None:
    async def scenario() -> None:
        client = Client()
        client.slow.clear()
        asking = requests(client)
        putting = asyncio.create_task(asking.put("g1", [FAILED], None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        putting.cancel()
        leaving = asyncio.create_task(asking.leave(["g1"]))
        await asyncio.sleep(0.01)
        assert [name for name, *_ in client.sent] == ["put"]
        client.slow.set()
        await leaving
        assert client.sent[1:] == [("release", "g1"), ("renew", 0.0)]

    asyncio.run(scenario())


def test_a_lease_granted_to_an_actor_that_leaves_is_released() -> None:
    async def scenario() -> None:
        client = Client(LEASE)
        client.slow.clear()
        asking = requests(client)
        leasing = asyncio.create_task(asking.lease(lambda: 0))
        await asyncio.sleep(0.01)
        leasing.cancel()
        client.slow.set()
        await asking.leave([])
        assert client.sent[1:] == [("release", "g1"), ("renew", 0.0)]

    asyncio.run(scenario())


def test_a_heartbeat_that_fails_loses_no_group_and_is_counted_in_the_next() -> None:
    async def scenario() -> None:
        client = Client(UNAVAILABLE, ("g2",))
        asking = requests(client)
        assert await asking.renew(["g1", "g2"]) == ()
        assert await asking.renew(["g1", "g2"]) == ["g2"]
        assert client.sent == [("renew", 0.0), ("renew", 1.0)]

    asyncio.run(scenario())


def test_a_group_that_a_put_made_whole_is_not_lost_though_it_has_no_lease() -> None:
    async def scenario() -> None:
        client = Client(PutAck(1, True), ("g1", "g2"), ("g1", "g2"))
        asking = requests(client)
        client.slow.clear()
        putting = asyncio.create_task(asking.put("g1", [FAILED], None))
        while not client.sent:
            await asyncio.sleep(0)
        renewing = asyncio.create_task(asking.renew(["g1", "g2"]))
        while len(client.sent) < 2:
            await asyncio.sleep(0)
        client.slow.set()  # both replies come at once
        assert await renewing == ["g2"]
        await putting
        assert await asking.renew(["g1", "g2"]) == ["g2"]  # explored, and not forgotten yet

    asyncio.run(scenario())


def test_a_group_with_a_put_under_way_is_lost_only_by_the_reply_to_it() -> None:
    async def scenario() -> None:
        class Slow(Client):
            async def put(self, *_: Any) -> Any:
                await self.slow.wait()
                raise LeaseLost("another's")

        client = Slow()
        client.renew = AsyncMock(return_value=("g1",))  # type: ignore[method-assign]
        asking = requests(client)
        client.slow.clear()
        putting = asyncio.create_task(asking.put("g1", [FAILED], None))
        await asyncio.sleep(0)
        assert await asking.renew(["g1"]) == []
        client.slow.set()
        with pytest.raises(LeaseLost):
            await putting
        assert await asking.renew(["g1"]) == ["g1"]

    asyncio.run(scenario())


def test_progress_is_put_once_and_only_a_lost_lease_and_a_sick_engine_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.buffer_requests.PARTIAL_S", 0.05)

    async def scenario() -> None:
        result = SKIPPED
        client = Client(UNAVAILABLE, FULL, LimitExceeded("20 bytes; limit 10"), None)
        asking = requests(client)
        sent = SentProgress(asking.metrics.partial)
        for _ in range(4):
            await asking.put_partial("g1", result, sent)
        assert len(client.sent) == 4 and asking.metrics.partial == {"refused": 3}
        client.replies = [LeaseLost("another's"), SickResult("v9", cause="version_future")]
        with pytest.raises(LeaseLost):
            await asking.put_partial("g1", result, sent)
        with pytest.raises(EngineSick):
            await asking.put_partial("g1", result, sent)
        client.slow.clear()  # a silent buffer stops no attempt
        await asking.put_partial("g1", result, sent)
        assert asking.metrics.partial == {"refused": 4}

    asyncio.run(scenario())


def test_a_heartbeat_says_what_the_process_has_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one looks at the processes anew."""
    looks: list[bool] = []
    monkeypatch.setattr(
        "actors.buffer_requests.cpu_seconds", lambda *, newest: looks.append(newest) or 7.0
    )
    monkeypatch.setattr("actors.buffer_requests.age_s", lambda: 10.0)
    metrics, client = ActorMetrics(gpus=2), AsyncMock()
    client.renew.return_value = ()
    requests = BufferRequests("a", client, metrics, AsyncMock())
    asyncio.run(requests.renew([]))
    asyncio.run(requests.leave([]))
    sent = [call.args[2] for call in client.renew.call_args_list]
    assert [(each["cpu_s"], each["gpu_s"]) for each in sent] == [(7.0, 20.0)] * 2
    assert looks == [False, True]
