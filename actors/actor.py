"""The actor: leases tasks, explores groups on one engine, puts every result as it ends.

lease ─► explore_group ─► put (durable when acknowledged)      as many as fill the engine
heartbeat: renews all leases of this actor, carries its metrics
follow:    keeps the engine on the newest weights
watch:     notices a dead engine, measures how busy a living one is
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from actors.engine import VLLMPolicy
from actors.utilization import Idleness, Occupancy
from actors.weights.subscriber import WeightSubscriber, follow
from buffer import AsyncBufferClient, Lease, Wait
from r3l.actor_metrics import ActorMetrics
from r3l.config import RunConfig
from r3l.errors import (
    BufferUnavailable,
    Conflict,
    EngineDead,
    LeaseLost,
    LimitExceeded,
    RecordError,
    StoreError,
)
from r3l.records import GroupPlan, SlotResult
from r3l.rollout.group import explore_group
from r3l.rollout.interfaces import Environment

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
STORE_FULL_S = 2.0  # before what found no room in the store is asked for again
WATCH_S = 0.1
LEAVE_S = 5.0  # for the puts under way and for the release, when the actor leaves


class Stopped(Exception):
    """Ends the loops of an actor that was asked to stop."""


class Actor:
    """One actor on one engine. `run` returns when `stop` was set or the engine died.

    Consumes leases of the buffer, produces slot results; waits for leases (admission decides)
    and for the engine; SIGTERM unblocks it, what is done is put and the rest released.
    """

    def __init__(
        self,
        name: str,
        policy: VLLMPolicy,
        client: AsyncBufferClient,
        subscriber: WeightSubscriber,
        make_env: Callable[[], Environment],
        config: RunConfig,
        metrics: ActorMetrics,
    ) -> None:
        self.name, self.policy, self.client = name, policy, client
        self.subscriber, self.make_env, self.config = subscriber, make_env, config
        # All three count in one record, which outlives the engine.
        self.metrics = policy.metrics = subscriber.metrics = metrics
        self.plan: GroupPlan = config.algorithm.build().plan()
        self.stop = asyncio.Event()
        self.held: dict[str, asyncio.Task[None]] = {}
        self.live: Counter[str] = Counter()
        """Attempts under way, by group."""
        self.occupancy = Occupancy(config.actor.concurrent_requests)
        self.idle = Idleness()
        self.results = 0
        self._puts: set[asyncio.Task[SlotResult]] = set()
        self._asking: asyncio.Task[Lease | Wait] | None = None

    async def run(self) -> None:
        """Explore until `stop` is set. Raises EngineDead when the engine died."""
        self.subscriber.loaded = None  # a new engine holds what is on disk
        try:
            async with asyncio.TaskGroup() as self._tasks:
                loops = (self._explore_forever(), self._heartbeat(), self._watch())
                for loop in (*loops, follow(self.subscriber, self.policy)):
                    self._tasks.create_task(loop)
                await self.stop.wait()
                raise Stopped
        except ExceptionGroup as ended:
            _, failed = ended.split(Stopped)
            if failed is not None:
                raise _first(failed) from failed
        finally:
            await self._leave()

    async def _explore_forever(self) -> NoReturn:
        """Lease a group whenever the engine has room for its attempts; none before it is known
        which weights will sample them."""
        await self.policy.hash_first_weights()
        while True:
            while not self.occupancy.admits(self.live.total(), self.plan.base):
                await asyncio.sleep(WATCH_S)
            lease = await self._lease()
            accepted = {(r.role, r.slot) for r in lease.accepted}
            self.metrics.taken_over += bool(accepted)
            self.live[lease.group_id] = sum(
                (lease.plan.last_role(slot), slot) not in accepted
                for slot in range(lease.plan.base)
            )
            exploring = self._tasks.create_task(self._explore(lease))
            self.held[lease.group_id] = exploring

    async def _lease(self) -> Lease:
        """Wait until the buffer grants a lease; what the engine lacks meanwhile counts as idle."""
        with self.idle:
            while True:
                ask = self.client.lease(self.name, self.policy.version, self.plan)
                self._asking = asyncio.create_task(ask)
                try:
                    answer = await asyncio.shield(self._asking)
                except (BufferUnavailable, StoreError) as error:
                    await self._wait_for_buffer(error, "a lease")
                    continue
                if isinstance(answer, Lease):
                    return answer
                await asyncio.sleep(answer.retry_s)

    async def _wait_for_buffer(self, error: BufferUnavailable | StoreError, request: str) -> None:
        """Before `request` is sent again; a service that does not reply has been waited for."""
        self._count_refusal(error)
        log.warning("waiting for the buffer with %s: %s", request, error)
        if isinstance(error, StoreError):
            await asyncio.sleep(STORE_FULL_S)

    def _count_refusal(self, error: BufferUnavailable | StoreError) -> None:
        if isinstance(error, StoreError):
            self.metrics.store_full += 1
        else:
            self.metrics.buffer_unavailable += 1

    async def _explore(self, lease: Lease) -> None:
        async def put(result: SlotResult) -> SlotResult:
            return await self._put(lease, result)

        evaluating = lease.purpose == "eval"
        try:
            results = await explore_group(
                lease.task,
                self.policy,
                self.make_env,
                _for_evaluation(self.config) if evaluating else self.config,
                seed=zlib.crc32(f"{self.config.seed}/{lease.group_id}".encode()),
                plan=lease.plan,
                accepted=lease.accepted,
                emit=put,
            )
        except (LeaseLost, Conflict) as lost:
            if isinstance(lost, LeaseLost):
                self.metrics.lease_lost += 1
            else:
                self.metrics.put_conflicts += 1
            log.warning("%s: left to another actor (%s)", lease.group_id, lost)
        else:
            self.metrics.groups += 1
            for result in results:
                self.metrics.results[f"{result.role}_{result.status}"] += 1
        # Cancelled, the group stays held: whoever cancels says what becomes of it.
        self._forget(lease.group_id)

    def _forget(self, group_id: str) -> None:
        self.held.pop(group_id, None)
        self.live.pop(group_id, None)

    async def _put(self, lease: Lease, result: SlotResult) -> SlotResult:
        """Put to the end even if the attempt's group is cancelled meanwhile; returns the result
        as the buffer has it."""
        putting = asyncio.create_task(self._put_until_acknowledged(lease.group_id, result))
        self._puts.add(putting)
        putting.add_done_callback(self._puts.discard)
        kept = await asyncio.shield(putting)
        self.results += 1
        if result.role == lease.plan.last_role(result.slot) and lease.group_id in self.live:
            self.live[lease.group_id] -= 1
        return kept

    async def _put_until_acknowledged(self, group_id: str, result: SlotResult) -> SlotResult:
        """A result that the buffer refuses for what it is resolves its slot as failed."""
        stamp, refused = self._stamp(result), False
        while True:
            try:
                await self.client.put(group_id, self.name, result, stamp)
                return result
            except (LimitExceeded, RecordError) as error:
                if refused:
                    raise  # it is not the attempt that the buffer minds
                refused, cause = True, _refusal(error)
                self.metrics.refused[cause] += 1
                log.error("%s: %s %d was refused: %s", group_id, result.role, result.slot, error)
                result = SlotResult(result.role, result.slot, "failed", cause=cause)
            except (BufferUnavailable, StoreError) as error:
                # Puts are idempotent, so trying again after a lost reply changes nothing.
                await self._wait_for_buffer(error, f"a put of {group_id}")

    def _stamp(self, result: SlotResult) -> tuple[int, str] | None:
        """(version, hash of the weights) of the newest step of an attempt, where known."""
        attempt = result.trajectory
        version = self.policy.version if attempt is None else int(attempt.step_versions.max())
        known = self.policy.fingerprints.get(version)
        return (version, known) if known else None

    async def _heartbeat(self) -> NoReturn:
        """Renew every lease and report the metrics, the first time before any group ends."""
        while True:
            await self._renew()
            await asyncio.sleep(HEARTBEAT_S)

    async def _renew(self) -> None:
        try:
            lost = await self.client.renew(list(self.held), self.name, self._report())
        except (BufferUnavailable, StoreError) as error:
            self._count_refusal(error)
            log.warning("no heartbeat: %s", error)
            return
        for group_id in lost:
            if task := self.held.get(group_id):
                log.warning("%s: the lease ran out; left to another actor", group_id)
                self.metrics.lease_lost += 1
                self._forget(group_id)
                task.cancel()

    def _report(self) -> dict[str, float]:
        """The metrics as of now; the idle share is since the report before."""
        self.metrics.weight_version = self.policy.version
        self.metrics.idle_share = self.idle.share()
        return self.metrics.numbers()

    async def _watch(self) -> NoReturn:
        """Notice an engine that died while nobody asked it, and how much it has to do."""
        while True:
            if self.policy.dead:
                raise EngineDead("the engine process is gone")
            live = self.live.total()
            self.occupancy.observe(self.metrics.requests_running, live)
            self.idle.observe(self.occupancy.missing(live))
            await asyncio.sleep(WATCH_S)

    async def _leave(self) -> None:
        """Finish the puts under way, give back what is not done."""
        open_requests = {*self._puts, *([self._asking] if self._asking else [])}
        if open_requests:
            _, late = await asyncio.wait(open_requests, timeout=LEAVE_S)
            for request in late:
                request.cancel()
        leases = {*self.held, *_granted(self._asking)}
        if not leases:
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                await self.client.release(list(leases), self.name)
        except (BufferUnavailable, StoreError, TimeoutError) as error:
            log.warning("leases not released, they will run out: %s", error)


def _granted(asking: asyncio.Task[Lease | Wait] | None) -> list[str]:
    """The group a lease request was granted that nobody has begun with."""
    if asking is None or not asking.done() or asking.cancelled() or asking.exception():
        return []
    answer = asking.result()
    return [answer.group_id] if isinstance(answer, Lease) else []


def _refusal(error: LimitExceeded | RecordError) -> str:
    """The cause under which an attempt that the buffer does not take is counted."""
    large = isinstance(error, LimitExceeded) or error.cause == "too_large"
    return "too_large" if large else "bad_record"


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first failure of a group: an engine's death, if it is among them."""
    if deaths := failures.subgroup(EngineDead):
        failures = deaths
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _for_evaluation(config: RunConfig) -> RunConfig:
    actor = config.actor.model_copy(update={"temperature": config.eval.temperature})
    return config.model_copy(update={"actor": actor})
