"""The actor's loop around stand-ins for engine, buffer and publisher."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from actors.actor import Actor
from actors.weights.subscriber import WeightSubscriber
from buffer import Lease, PutAck, Wait
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import (
    BufferError_,
    Conflict,
    EngineDead,
    LeaseLost,
    LimitExceeded,
    R3LError,
    RecordError,
    StoreError,
)
from r3l.records import Extra, GroupPlan, SlotResult, Task
from r3l.rollout.exploration import Exploration
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import RunConfig
from tests.r3l.fakes import Corridor, ScriptedPolicy

PROMPT = len(ScriptedPolicy(str).chat.prompt_ids)


class Engine(ScriptedPolicy):
    """Replies to one request at a time, each after a release of `replies`."""

    def __init__(self) -> None:
        super().__init__(lambda prompt: "a")
        self.metrics, self.fingerprints, self.dead = ActorMetrics(), {}, False
        self.replies = asyncio.Semaphore(0)

    async def load(self, path: str, manifest: Any) -> float:
        return 0.0

    async def hash_first_weights(self) -> None:
        await asyncio.sleep(0.05)
        self.fingerprints[0] = "abc"

    async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
        self.metrics.requests_running += 1
        try:
            await self.replies.acquire()
            return await super().sample(token_ids, params)
        finally:
            self.metrics.requests_running -= 1


class Buffer:
    """Grants groups up to a number, and remembers what became of them."""

    def __init__(self, groups: int, refusal: R3LError | None = None) -> None:
        self.groups, self.granted = groups, 0
        self.refusal = refusal
        """Of what was sampled for the first group."""
        self.puts: list[tuple[str, SlotResult, Any]] = []
        self.released: list[str] = []
        self.slow = asyncio.Event()
        self.taken: dict[str, type[R3LError]] = {}
        self.heartbeats = 0
        self.plan, self.purpose = GroupPlan(2), "train"

    async def lease(self, actor: str, version: int, **_: Any) -> Lease | Wait:
        if self.granted == self.groups:
            return Wait("no more", 0.01)
        self.granted += 1
        task = Task(f"t{self.granted}", "corridor", 0)
        return Lease(f"g{self.granted}", task, self.purpose, "", self.plan, (), 60.0)

    async def put(self, group_id: str, actor: str, made: Any, fingerprint: Any) -> PutAck:
        await self.slow.wait()
        if group_id in self.taken:
            raise self.taken[group_id](f"{group_id} is another's")
        if self.refusal is not None and group_id == "g1" and made[0].status == "done":
            raise self.refusal
        self.puts += [(group_id, each, fingerprint) for each in made]
        return PutAck(1, False)

    async def renew(self, groups: list[str], actor: str, metrics: dict[str, float]) -> list[str]:
        self.heartbeats += 1
        return []

    async def release(self, groups: list[str], actor: str) -> None:
        self.released += groups


@asynccontextmanager
async def acting(
    engine: Engine, buffer: Buffer, requests: int, algorithm: str = "raft"
) -> AsyncIterator[Actor]:
    config = RunConfig.model_validate(
        {
            "algorithm": {"name": algorithm, "group_size": 2},
            "actor": {"concurrent_requests": requests},
        }
    )
    subscriber = WeightSubscriber("tcp://127.0.0.1:9")
    try:
        yield Actor("a", engine, buffer, subscriber, lambda task: Corridor(), config)  # type: ignore[arg-type]
    finally:
        subscriber.close()


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


async def explored(algorithm: Algorithm, buffer: Buffer, responses: int) -> Actor:
    """Explores the groups of `buffer` to their end."""
    engine = Engine()
    buffer.slow.set()
    async with acting(engine, buffer, requests=64) as actor:
        actor.config = actor.config.model_copy(update={"algorithm": algorithm})
        running = asyncio.create_task(actor.run())
        for _ in range(responses):
            engine.replies.release()
        await eventually(lambda: actor.metrics.groups == buffer.groups)
        assert not running.done() and not actor.held
        actor.stop.set()
        await running
    assert len(engine.prompts) == responses
    return actor


def test_groups_are_leased_until_the_engine_is_full() -> None:
    async def scenario() -> None:
        engine, buffer = Engine(), Buffer(groups=100)
        async with acting(engine, buffer, requests=6) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: engine.metrics.requests_running == 6)
            await asyncio.sleep(0.3)
            assert buffer.granted == 3 and engine.metrics.requests_running == 6
            buffer.slow.set()
            for _ in range(6 * 3):  # three doors in each attempt
                engine.replies.release()
            await eventually(lambda: buffer.granted == 6 and engine.metrics.requests_running == 6)
            actor.stop.set()
            await running

    asyncio.run(scenario())


def test_an_actor_reports_its_metrics_before_its_first_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.actor.HEARTBEAT_S", 3600.0)

    async def scenario() -> None:
        engine, buffer = Engine(), Buffer(groups=1)
        async with acting(engine, buffer, requests=64) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: engine.metrics.requests_running == 2)
            assert buffer.heartbeats == 1 and not buffer.puts
            buffer.slow.set()
            actor.stop.set()
            await running

    asyncio.run(scenario())


def test_an_engine_is_idle_only_while_a_lease_is_awaited_and_requests_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.actor.HEARTBEAT_S", 0.5)
    monkeypatch.setattr("actors.actor.WATCH_S", 0.01)

    async def scenario(groups: int, requests: int) -> float:
        engine, buffer = Engine(), Buffer(groups=groups)
        async with acting(engine, buffer, requests=requests) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: buffer.heartbeats >= 3)
            buffer.slow.set()
            actor.stop.set()
            await running
            return actor.metrics.idle_share

    # A third of the capacity is free, but too little for another group.
    assert asyncio.run(scenario(groups=100, requests=3)) == 0.0
    assert asyncio.run(scenario(groups=1, requests=4)) == pytest.approx(0.5, abs=0.01)
    assert asyncio.run(scenario(groups=0, requests=4)) == 1.0


def test_a_stopping_actor_submits_finished_results_and_releases_its_leases() -> None:
    async def scenario() -> None:
        engine, buffer = Engine(), Buffer(groups=2)
        async with acting(engine, buffer, requests=64) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: engine.metrics.requests_running == 4)
            for _ in range(3 * 3 + 2):  # attempts share the replies; at least one comes to its end
                engine.replies.release()
            await eventually(lambda: actor.requests._puts)
            actor.stop.set()
            await asyncio.sleep(0.05)
            assert not running.done(), "a put under way is waited for"
            buffer.slow.set()
            await running
            assert buffer.puts and buffer.released
            assert all(fingerprint == (0, "abc") for *_, fingerprint in buffer.puts)
            assert set(buffer.released) <= {"g1", "g2"}

    asyncio.run(scenario())


def test_a_group_that_is_leased_again_to_its_actor_is_played_once() -> None:
    async def scenario() -> None:
        engine, buffer = Engine(), Buffer(groups=2)
        lease, leased = buffer.lease, []

        async def again(*args: Any, **_: Any) -> Lease | Wait:
            leased.append(await lease(*args))
            return leased[0] if len(leased) == 2 else leased[-1]

        buffer.lease = again  # type: ignore[method-assign]
        buffer.slow.set()
        async with acting(engine, buffer, requests=64) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: len(leased) > 2)
            for _ in range(2 * 3):  # two attempts of three doors
                engine.replies.release()
            await eventually(lambda: not actor.held)
            actor.stop.set()
            await running
        assert len(buffer.puts) == 2 and not buffer.released

    asyncio.run(scenario())


def test_groups_that_another_actor_holds_are_abandoned_and_counted() -> None:
    async def scenario() -> None:
        engine, buffer = Engine(), Buffer(groups=3)
        buffer.taken = {"g1": LeaseLost, "g2": Conflict}
        buffer.slow.set()
        async with acting(engine, buffer, requests=64) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: engine.metrics.requests_running == 6)
            for _ in range(6 * 3):
                engine.replies.release()
            await eventually(lambda: not actor.held)
            assert actor.metrics.lease_lost == actor.metrics.put_conflicts == 1
            assert actor.metrics.groups == 1 and {group for group, *_ in buffer.puts} == {"g3"}
            actor.stop.set()
            await running
            assert not buffer.released

    asyncio.run(scenario())


class FullBuffer(Buffer):
    """Has no room for a while, and none for what is given back."""

    asked = 0

    def refuse(self) -> None:
        self.asked += 1
        if self.asked <= 4:
            raise StoreError("the disk is full; nothing was written", cause="disk")

    async def lease(self, *arguments: Any, **_: Any) -> Lease | Wait:
        self.refuse()
        return await super().lease(*arguments)

    async def renew(self, *arguments: Any) -> list[str]:
        self.refuse()
        return await super().renew(*arguments)

    async def release(self, groups: list[str], actor: str) -> None:
        raise StoreError("the disk is full; nothing was written", cause="disk")


def test_an_actor_waits_while_the_store_is_full_whatever_it_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("actors.buffer_requests.STORE_FULL_S", 0.1)
    monkeypatch.setattr("actors.actor.HEARTBEAT_S", 0.1)

    async def scenario() -> None:
        engine, buffer = Engine(), FullBuffer(groups=1)
        async with acting(engine, buffer, requests=64) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: engine.metrics.requests_running == 2 and buffer.asked > 5)
            assert actor.metrics.store_full == 4
            actor.stop.set()
            await running

    asyncio.run(scenario())


@pytest.mark.parametrize("busy", [True, False])
def test_a_dead_engine_ends_the_loop_and_its_groups_are_released(busy: bool) -> None:
    async def scenario() -> None:
        engine, buffer = Engine(), Buffer(groups=int(busy))
        async with acting(engine, buffer, requests=64) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: engine.metrics.requests_running == 2 * busy)
            engine.dead = True
            async with asyncio.timeout(120):
                with pytest.raises(EngineDead):
                    await running
            assert buffer.released == ["g1"] * busy

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("refusal", "cause"),
    [
        (LimitExceeded("group g1: 20 bytes; limit 10"), "too_large"),
        (RecordError("20 bytes; the limit is 10", cause="too_large"), "too_large"),
        (RecordError("reward must be a number"), "bad_record"),
        (BufferError_("internal: IndexError()"), "bad_record"),
    ],
)
def test_an_attempt_that_the_buffer_refuses_fails_alone_and_is_counted(
    refusal: R3LError, cause: str
) -> None:
    async def scenario() -> None:
        engine, buffer = Engine(), Buffer(groups=2, refusal=refusal)
        buffer.slow.set()
        async with acting(engine, buffer, requests=64) as actor:
            running = asyncio.create_task(actor.run())
            for _ in range(2 * 2 * 3):
                engine.replies.release()
            await eventually(lambda: len(buffer.puts) == 4)
            await eventually(lambda: not actor.held)
            assert not running.done(), "its other groups go on"
            actor.stop.set()
            await running
        told = sorted((group, r.status, r.cause) for group, r, _ in buffer.puts)
        assert told == [("g1", "failed", cause)] * 2 + [("g2", "done", "")] * 2
        assert actor.metrics.refused[cause] == 2.0 and actor.failures.causes == {cause}
        assert actor.metrics.results["base_failed"] == actor.metrics.results["base_done"] == 2
        assert not buffer.released

    asyncio.run(scenario())


def test_a_group_goes_on_where_another_actor_left_it() -> None:
    """With its attempt, its reflection and the first step of its retry."""
    whole = Buffer(groups=1)
    asyncio.run(explored(TwoSteps(), whole, 3 + 1 + 2))
    base, thought, retry = (made for _, made, _ in whole.puts)
    attempt = retry.trajectory
    begun = replace(
        attempt,
        finish="",
        feedback="",
        extra=Extra(),
        **{
            name: getattr(attempt, name)[:2]
            for name in ("step_spans", "step_versions", "step_newest_versions", "step_seconds")
        },
        actions=attempt.actions[:2],
        observations=attempt.observations[:3],
        **{
            name: getattr(attempt, name)[: attempt.step_spans[2, 0] - PROMPT]
            for name in ("token_ids", "logprobs")
        },
    )

    class Left(Buffer):
        async def lease(self, *arguments: Any, **_: Any) -> Lease | Wait:
            lease = await super().lease(*arguments)
            if isinstance(lease, Wait):
                return lease
            partial = (SlotResult(1, "done", trajectory=begun, of=0),)
            return replace(lease, accepted=(base,), reflections=(thought,), partial=partial)

    left = Left(groups=1)
    actor = asyncio.run(explored(TwoSteps(), left, 1))
    ((_, again, _),) = left.puts
    assert again.trajectory.token_ids.tolist() == attempt.token_ids.tolist()
    assert actor.metrics.taken_over == 1 and actor.metrics.partial["continued"] == 1
    assert actor.metrics.results == {"base_done": 1, "distilled_done": 1}


class TwoSteps(Algorithm):
    """Retries its attempt from step 1, whatever the reflection says."""

    name: str = "two_steps"

    async def explore(self, x: Exploration) -> None:
        await x.play(0)
        thought = await x.ask("why", ("Think.", "Why?"), of=0)
        await x.retry(1, of=0, pivot=1, reflection=thought.name)


def test_a_group_counts_as_its_running_attempts_and_at_once_when_it_is_leased() -> None:
    """Of its four slots, two are retries, which wait for their attempts."""

    class Instant(Buffer):
        """Grants leases before any group could begin."""

        seen: list[int]

        async def lease(self, *arguments: Any, **_: Any) -> Lease | Wait:
            self.seen.append(actor.live)
            return await super().lease(*arguments)

    async def scenario() -> None:
        nonlocal actor
        engine, buffer = Engine(), Instant(groups=100)
        buffer.plan, buffer.seen = GroupPlan(4), []
        async with acting(engine, buffer, requests=8, algorithm="r3l") as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: engine.metrics.requests_running == 8)
            await asyncio.sleep(0.3)
            assert buffer.granted == 4 and actor.live == 8 and actor.width == 2
            assert buffer.seen[:2] == [0, 4] and max(buffer.seen) <= 6
            actor.stop.set()
            await running

    actor: Any = None
    asyncio.run(scenario())
