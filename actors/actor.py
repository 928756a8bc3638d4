"""An actor leases tasks, explores groups on one engine and puts each finished result in the buffer.

lease ─► explore_group ─► put (durable when acknowledged)    in parallel, so that the engine is busy
heartbeat: renews all leases of this actor and reports its metrics
follow:    keeps the engine on the newest weights
watch:     detects a dead engine (then actors.cli starts another), measures how busy it is
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any, NoReturn

from actors.buffer_requests import BufferRequests, Fingerprint, GroupPuts, Item
from actors.engine import VLLMPolicy
from actors.utilization import Occupancy
from actors.weights.subscriber import WeightSubscriber, follow
from actors.weights.transport import Transport
from buffer import AsyncBufferClient, Lease
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import Conflict, EngineDead, EngineSick, LeaseLost
from r3l.records import SlotResult, Task
from r3l.rollout.env_interface import Playable
from r3l.rollout.exploration import Emit, Exploration
from r3l.rollout.failures import FirstFailures
from r3l.rollout.group import Explore, explore_group
from r3l.rollout.partial import Progress
from r3l.run.answer_probability import with_exact
from r3l.run.config import RunConfig
from r3l.run.evaluation_tags import EvalTag, attempt_seed

log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
WATCH_S = 0.1


class Stopped(Exception):
    """Ends the loops of a stopped actor."""


@dataclass
class HeldGroup:
    """A leased group that is being explored."""

    x: Exploration
    puts: GroupPuts
    exploring: asyncio.Task[None] | None = None

    def live(self, width: int) -> int:
        """Returns the number of running attempts. A group that has not begun counts as `width`."""
        begun = max(self.x.running, self.puts.busy)
        return begun if self.x.widest else min(width, len(self.x.open))


class Actor:
    """Leases groups, explores them on one engine and puts their results.

    Leases another group once the engine has room and the buffer grants the lease. When `stop` is
    set (SIGTERM sets it), `run` finishes the puts under way, releases all leases and returns.
    `transport` brings the sets that `subscriber` learns of; by default the subscriber itself does.
    """

    def __init__(
        self,
        name: str,
        policy: VLLMPolicy,
        client: AsyncBufferClient,
        subscriber: WeightSubscriber,
        make_env: Callable[[Task], Playable],
        config: RunConfig,
        transport: Transport | None = None,
    ) -> None:
        self.policy, self.subscriber = policy, subscriber
        self.transport = transport or subscriber
        self.make_env, self.config = make_env, config
        self.metrics = subscriber.metrics = policy.metrics
        self.failures = FirstFailures()
        self.requests = BufferRequests(name, client, self.metrics, self.failures)
        self.stop = asyncio.Event()
        self.held: dict[str, HeldGroup] = {}
        self.widest = self.planned = 0
        """The most attempts that an ended group has run at once; the slots of the newest group."""
        self.occupancy = Occupancy(config.actor.concurrent_requests)
        self.leasing = False
        """Whether the actor waits for a lease."""
        self.unused: list[float] = []
        """Idle shares of the engine since the last heartbeat; 0 while no lease was awaited."""

    async def run(self) -> None:
        """Explores until `stop` is set. Raises EngineDead if the engine died. Raises EngineSick if
        the engine computes wrongly (r3l.rollout.engine_symptoms)."""
        self.subscriber.loaded = None  # a new engine holds the weights of its model folder
        try:
            async with asyncio.TaskGroup() as self._tasks:
                loops = (self._explore_forever(), self._heartbeat(), self._watch())
                bring = self.transport.bring
                for loop in (*loops, follow(self.subscriber, self.policy.load, bring)):
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

    @property
    def results(self) -> int:
        """The number of results that were put."""
        return self.requests.results

    @property
    def live(self) -> int:
        """The number of running attempts, including those of groups that are about to begin."""
        return sum(group.live(self.width) for group in self.held.values())

    @property
    def width(self) -> int:
        """The number of attempts that a further group is expected to run at once: the most that any
        group has run so far. Before any group has begun, the number of slots in the newest plan."""
        return max([self.widest, *(group.x.widest for group in self.held.values())]) or self.planned

    async def _explore_forever(self) -> NoReturn:
        """Hashes the engine's weights, then leases a group whenever the engine has room for it."""
        await self.policy.hash_first_weights()
        while True:
            while not self.occupancy.admits(self.live, self.width):
                await asyncio.sleep(WATCH_S)
            self.leasing = True
            lease = await self.requests.lease(lambda: self.policy.version)
            self.leasing = False
            if lease.group_id in self.held:  # it seemed silent, so it got its own group again
                continue
            self.metrics.taken_over += bool(lease.accepted or lease.reflections or lease.partial)
            self.planned = lease.plan.slots
            group = self.held[lease.group_id] = self._group(lease)
            group.exploring = self._tasks.create_task(self._explore(lease, group))

    def _group(self, lease: Lease) -> HeldGroup:
        puts = GroupPuts(self.requests, lease, self._fingerprint)
        config = self.config
        emit: Emit = puts.put
        seed = zlib.crc32(f"{config.seed}/{lease.group_id}".encode())
        if lease.purpose == "eval":
            part = EvalTag.parse(lease.tag) or EvalTag(0)
            config = config.for_evaluation(part.temperature)
            seed = attempt_seed(config.seed, lease.task.task_id)
            if config.eval.exact and part.temperature is None:  # it is that of the task
                emit = self._put_with_exact(lease.task, puts)
        x = Exploration(
            lease.task,
            self.policy,
            partial(self.make_env, lease.task),
            lease.plan,
            # Groups are numbered in the order of their leases; the earliest one is served first.
            config.actor.decoding(priority=int(lease.group_id[1:])),
            seed=seed,
            handed=lease.handed,
            results={result.slot: result for result in lease.accepted},
            reflections={thought.name: thought for thought in lease.reflections},
            emit=emit,
            progress=Progress(
                lease.partial, puts.save, config.actor.progress_s, self.metrics.partial
            ),
            on_failure=self.failures,
        )
        return HeldGroup(x, puts)

    def _put_with_exact(self, task: Task, puts: GroupPuts) -> Emit:
        """Returns a function that adds the exact probability of the right answers to a result, then
        puts it."""

        async def put(made: Any, /) -> Any:
            if isinstance(made, SlotResult):
                make_env, actor = partial(self.make_env, task), self.config.actor
                budget = actor.max_response_tokens
                made = await with_exact(made, task, self.policy, make_env, budget)
            return await puts.put(made)

        return put

    async def _explore(self, lease: Lease, group: HeldGroup) -> None:
        try:
            results = await explore_group(self._explorer(lease), group.x)
            kept = {result.slot: result for result in (*results, *await group.puts.rest())}
        except (LeaseLost, Conflict) as error:
            if isinstance(error, LeaseLost):
                self.metrics.lease_lost += 1
            else:
                self.metrics.put_conflicts += 1
            log.warning(
                "%s: this actor gives up the group, and another may take it (%s)",
                lease.group_id,
                error,
            )
        else:
            self.metrics.groups += 1
            for result in kept.values():
                self.metrics.results[f"{result.role}_{result.status}"] += 1
        # A cancelled group stays held until its canceller forgets or releases it.
        self._forget(lease.group_id)

    def _explorer(self, lease: Lease) -> Explore:
        """Returns how the group is explored: as the algorithm does, but plainly in evaluations."""
        algorithm = self.config.algorithm
        if lease.purpose == "eval":
            return partial(Algorithm.explore, algorithm)
        return algorithm.explore

    def _forget(self, group_id: str) -> None:
        if (group := self.held.pop(group_id, None)) is not None:
            self.widest = max(self.widest, group.x.widest)

    def _fingerprint(self, made: Sequence[Item]) -> Fingerprint:
        """Returns (version, hash) of the weights that sampled the last of `made`. Returns None if
        the hash is unknown."""
        version = self.policy.version
        for each in made:
            if not isinstance(each, SlotResult):
                version = each.version
            elif each.trajectory is not None:
                attempt = each.trajectory
                version = int(attempt.step_versions[attempt.first_played :].max())
        known = self.policy.fingerprints.get(version)
        return (version, known) if known else None

    async def _heartbeat(self) -> NoReturn:
        """Renews every lease and reports the metrics, at once and then every HEARTBEAT_S."""
        while True:
            self.metrics.weight_version = self.policy.version
            self.metrics.idle_share = fmean(self.unused or [0.0])
            self.unused.clear()
            self.metrics.special_texts += self.policy.chat.special.take()
            for group_id in await self.requests.renew(list(self.held)):
                if group := self.held.get(group_id):
                    log.warning(
                        "%s: the lease expired, so another actor may take the group", group_id
                    )
                    self.metrics.lease_lost += 1
                    self._forget(group_id)
                    if group.exploring:
                        group.exploring.cancel()
            await asyncio.sleep(HEARTBEAT_S)

    async def _watch(self) -> NoReturn:
        """Detects an engine that died between requests, and measures how busy a live engine is."""
        while True:
            if self.policy.dead:
                raise EngineDead("the engine process has ended")
            live = self.live
            self.occupancy.observe(self.metrics.requests_running, live)
            self.unused.append(self.occupancy.missing(live) if self.leasing else 0.0)
            await asyncio.sleep(WATCH_S)


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the failure to report: EngineDead if it occurred, otherwise the first failure."""
    if deaths := failures.subgroup(EngineDead):
        failures = deaths
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
