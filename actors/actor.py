"""An actor leases tasks, explores groups on one engine and puts each finished result in the buffer.

lease ─► explore_group ─► put (durable when acknowledged)    in parallel, so that the engine is busy
heartbeat: renews all leases of this actor and reports its metrics
follow:    keeps the engine on the newest weights
watch:     detects a dead engine (then actors.cli starts another), measures how busy it is
"""

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import NoReturn

from actors.buffer_requests import BufferRequests
from actors.engine import VLLMPolicy
from actors.utilization import Occupancy
from actors.weights.subscriber import WeightSubscriber, follow
from buffer import AsyncBufferClient, Lease
from r3l.errors import Conflict, EngineDead, EngineSick, LeaseLost
from r3l.records import GroupPlan, SlotResult, Task
from r3l.rollout.env_interface import Playable
from r3l.rollout.failures import FirstFailures
from r3l.rollout.group import explore_group
from r3l.rollout.partial import Progress
from r3l.run.config import RunConfig

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
WATCH_S = 0.1


class Stopped(Exception):
    """Ends the loops of a stopped actor."""


class Actor:
    """Leases groups, explores them on one engine and puts their results.

    Leases another group once the engine has room and the buffer grants the lease. When `stop` is
    set (SIGTERM sets it), `run` finishes the puts under way, releases all leases and returns.
    """

    def __init__(
        self,
        name: str,
        policy: VLLMPolicy,
        client: AsyncBufferClient,
        subscriber: WeightSubscriber,
        make_env: Callable[[Task], Playable],
        config: RunConfig,
    ) -> None:
        self.policy, self.subscriber = policy, subscriber
        self.make_env, self.config = make_env, config
        self.metrics = subscriber.metrics = policy.metrics
        self.requests = BufferRequests(name, client, self.metrics)
        self.plan: GroupPlan = config.algorithm.build().plan()
        self.stop = asyncio.Event()
        self.held: dict[str, asyncio.Task[None]] = {}
        self.live: Counter[str] = Counter()
        """The number of running attempts of each group."""
        self.occupancy = Occupancy(config.actor.concurrent_requests)
        self.leasing = False
        """Whether the actor waits for a lease."""
        self.unused: list[float] = []
        """Idle shares of the engine since the last heartbeat; 0 while no lease was awaited."""
        self.results = 0
        self.failures = FirstFailures()

    async def run(self) -> None:
        """Explores until `stop` is set. Raises EngineDead if the engine died. Raises EngineSick if
        the engine computes wrongly (r3l.rollout.engine_symptoms)."""
        self.subscriber.loaded = None  # a new engine holds the weights of its model folder
        try:
            async with asyncio.TaskGroup() as self._tasks:
                loops = (self._explore_forever(), self._heartbeat(), self._watch())
                for loop in (*loops, follow(self.subscriber, self.policy.load)):
                    self._tasks.create_task(loop)
                await self.stop.wait()
                raise Stopped
        except ExceptionGroup as ended:
            _, failed = ended.split(Stopped)
            if failed is not None:
                first = _first(failed)
                if isinstance(first, EngineSick):
                    self.metrics.engines_sick[first.cause] += 1
                raise first from failed
        finally:
            await self.requests.leave(self.held)

    async def _explore_forever(self) -> NoReturn:
        """Hashes the engine's weights, then leases a group whenever the engine has room for it."""
        await self.policy.hash_first_weights()
        while True:
            while not self.occupancy.admits(self.live.total(), self.plan.base):
                await asyncio.sleep(WATCH_S)
            self.leasing = True
            lease = await self.requests.lease(lambda: self.policy.version, self.plan)
            self.leasing = False
            if lease.group_id in self.held:  # it seemed silent, so it got its own group again
                continue
            accepted = {(r.role, r.slot) for r in lease.accepted}
            self.metrics.taken_over += bool(accepted or lease.partial)
            self.live[lease.group_id] = sum(
                (lease.plan.last_role(slot), slot) not in accepted
                for slot in range(lease.plan.base)
            )
            exploring = self._tasks.create_task(self._explore(lease))
            self.held[lease.group_id] = exploring

    async def _explore(self, lease: Lease) -> None:
        config = self.config.for_evaluation() if lease.purpose == "eval" else self.config
        save = partial(self.requests.put_partial, lease.group_id)
        try:
            results = await explore_group(
                lease.task,
                self.policy,
                partial(self.make_env, lease.task),
                config,
                seed=zlib.crc32(f"{self.config.seed}/{lease.group_id}".encode()),
                plan=lease.plan,
                accepted=lease.accepted,
                emit=partial(self._put, lease),
                progress=Progress(
                    lease.partial, save, config.actor.progress_s, self.metrics.partial
                ),
                on_failure=self.failures,
                priority=int(lease.group_id[1:]),  # groups are numbered in lease order
            )
        except LeaseLost as error:
            self.metrics.lease_lost += 1
            log.warning("%s: left to another actor (%s)", lease.group_id, error)
        except Conflict as error:
            self.metrics.put_conflicts += 1
            log.warning("%s: left to another actor (%s)", lease.group_id, error)
        else:
            self.metrics.groups += 1
            for result in results:
                self.metrics.results[f"{result.role}_{result.status}"] += 1
        # A cancelled group stays held until its canceller forgets or releases it.
        self._forget(lease.group_id)

    def _forget(self, group_id: str) -> None:
        self.held.pop(group_id, None)
        self.live.pop(group_id, None)

    async def _put(self, lease: Lease, result: SlotResult) -> SlotResult:
        kept = await self.requests.put(lease.group_id, result, self._fingerprint(result))
        self.results += 1
        if result.role == lease.plan.last_role(result.slot) and lease.group_id in self.live:
            self.live[lease.group_id] -= 1
        return kept

    def _fingerprint(self, result: SlotResult) -> tuple[int, str] | None:
        """Returns (version, hash) of a result's weights. Returns None if the hash is unknown."""
        attempt = result.trajectory
        version = self.policy.version if attempt is None else int(attempt.step_versions.max())
        known = self.policy.fingerprints.get(version)
        return (version, known) if known else None

    async def _heartbeat(self) -> NoReturn:
        """Renews every lease and reports the metrics, at once and then every HEARTBEAT_S."""
        while True:
            self.metrics.weight_version = self.policy.version
            self.metrics.idle_share = fmean(self.unused or [0.0])
            self.unused.clear()
            for group_id in await self.requests.renew(list(self.held)):
                if task := self.held.get(group_id):
                    log.warning("%s: the lease expired; left to another actor", group_id)
                    self.metrics.lease_lost += 1
                    self._forget(group_id)
                    task.cancel()
            await asyncio.sleep(HEARTBEAT_S)

    async def _watch(self) -> NoReturn:
        """Detects an engine that died between requests, and measures how busy a live engine is."""
        while True:
            if self.policy.dead:
                raise EngineDead("the engine process has ended")
            live = self.live.total()
            self.occupancy.observe(self.metrics.requests_running, live)
            self.unused.append(self.occupancy.missing(live) if self.leasing else 0.0)
            await asyncio.sleep(WATCH_S)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the failure to report: EngineDead if it occurred, otherwise the first failure."""
    if deaths := failures.subgroup(EngineDead):
        failures = deaths
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
