"""Sends an actor's requests to the buffer. Repeats `lease` and `put` until they succeed.

lease     until granted
put       until on disk, even if the group is cancelled; a refused result becomes a failed slot, and
          a refused reflection is dropped, unless the refusal shows that the engine is sick
partial   once, since the next progress will contain this progress
renew     once a heartbeat; not repeated, because the next heartbeat does the same
leave     waits a moment for unfinished puts, releases the leases and reports the metrics
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from buffer import AsyncBufferClient, Lease, Wait
from buffer.client.sent_progress import SentProgress
from r3l.errors import (
    BufferError_,
    BufferUnavailable,
    EngineFailed,
    EngineSick,
    EpisodeError,
    LimitExceeded,
    RecordError,
    SickResult,
    StoreError,
)
from r3l.records import ReflectionRecord, SlotResult
from r3l.rollout.exploration import Made, OnFailure
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.process.cpu_time import age_s, cpu_seconds

log = logging.getLogger(__name__)

Fingerprint = tuple[int, str] | None
"""A policy version and the hash of its weights; None if the hash is unknown."""

STORE_FULL_S = 2.0  # until a request that found the store full is sent again
PARTIAL_S = 2.0  # for a put of progress; the attempt waits meanwhile
LEASE_WAIT_S = 2.0
"""How many seconds the buffer keeps a lease request until there is work. The request does not say
if the engine gets newer weights meanwhile, so this is short."""
LEAVE_S = 5.0  # for unfinished puts when the actor leaves, and as long again for the release


Item = SlotResult | ReflectionRecord


class BufferRequests:
    """Sends the requests of the actor `name`, and counts failed requests in `metrics`. Tells
    `on_failure` what the buffer refused. `results`: the number of results that were put."""

    def __init__(
        self,
        name: str,
        client: AsyncBufferClient,
        metrics: ActorMetrics,
        on_failure: OnFailure = lambda error: None,
    ) -> None:
        self.name, self.client, self.metrics, self.results = name, client, metrics, 0
        self.on_failure = on_failure
        self._puts: dict[asyncio.Task[Sequence[Item]], str] = {}  # unfinished, each with its group
        self._complete: set[str] = set()  # groups that need no lease
        self._leasing: asyncio.Task[Lease | Wait] | None = None

    async def lease(self, version: Callable[[], int]) -> Lease:
        """Waits for a lease. Each request states the engine's current `version()`. Raises
        EngineSick if the buffer refuses this version as impossible."""
        while True:
            asking = self.client.lease(self.name, version(), wait_s=LEASE_WAIT_S)
            self._leasing = asyncio.create_task(asking)
            try:
                reply = await asyncio.shield(self._leasing)
            except (BufferUnavailable, StoreError) as error:
                await self._wait(error, "a lease")
                continue
            except SickResult as error:
                raise EngineSick(str(error), cause=error.cause) from error
            if isinstance(reply, Lease):
                return reply
            await asyncio.sleep(reply.retry_s)

    async def put(
        self, group_id: str, made: Sequence[Item], fingerprint: Fingerprint
    ) -> Sequence[Item]:
        """Puts results and reflections, all or none. If the buffer refuses them as too large or
        malformed, puts them without the reflections. If that is refused too, puts failed results
        instead. Returns what was put.

        Cancelling the caller does not stop the put. Raises LeaseLost or Conflict. Raises EngineSick
        for a result that a healthy engine cannot produce.
        """
        putting = asyncio.create_task(self._put(group_id, made, fingerprint))
        self._puts[putting] = group_id
        putting.add_done_callback(self._puts.pop)
        return await asyncio.shield(putting)

    async def put_partial(self, group_id: str, result: SlotResult, sent: SentProgress) -> None:
        """Tries once to put a slot's progress. `sent`: the progress that the buffer already has.
        Raises LeaseLost. Raises EngineSick for progress that a healthy engine cannot produce."""
        try:
            async with asyncio.timeout(PARTIAL_S):
                await sent.put(self.client, group_id, self.name, result)
        except SickResult as error:
            raise EngineSick(str(error), cause=error.cause) from error
        except (BufferUnavailable, LimitExceeded, RecordError, StoreError, TimeoutError) as error:
            self.metrics.partial["refused"] += 1  # the next put has this progress too
            log.debug("%s: progress was not put: %r", group_id, error)  # counted; it comes often

    async def renew(self, group_ids: Sequence[str]) -> Sequence[str]:
        """Renews leases and reports the metrics. Returns the groups whose leases were lost.

        Does not return complete groups, which need no lease. Does not return groups with an
        unfinished put, because the put may complete the group.
        """
        self._complete.intersection_update(group_ids)
        try:
            lost = await self.client.renew(group_ids, self.name, self._numbers())
        except (BufferUnavailable, StoreError) as error:
            self._count(error)
            log.warning("the heartbeat failed: %s", error)
            return ()
        needs_none = self._complete.union(self._puts.values())
        return [group_id for group_id in lost if group_id not in needs_none]

    async def leave(self, group_ids: Iterable[str]) -> None:
        """Waits a moment for unfinished puts. Then releases the leases of `group_ids` and the
        newest lease, and reports the metrics a last time."""
        under_way = {*self._puts, *([self._leasing] if self._leasing else [])}
        if under_way:
            _, late = await asyncio.wait(under_way, timeout=LEAVE_S)
            for request in late:
                request.cancel()
        leases = {*group_ids, *self._granted()}
        try:
            async with asyncio.timeout(LEAVE_S):
                if leases:
                    await self.client.release(list(leases), self.name)
                await self.client.renew((), self.name, self._numbers(newest=True))
        except (BufferUnavailable, StoreError, TimeoutError) as error:
            log.warning("the leases were not released and will expire: %s", error)

    def _numbers(self, *, newest: bool = False) -> dict[str, float]:
        """Returns the metrics, with the CPU and GPU time that this process has used so far."""
        self.metrics.cpu_s = cpu_seconds(newest=newest)
        self.metrics.gpu_s = self.metrics.gpus * age_s()
        return self.metrics.numbers()

    async def _put(
        self, group_id: str, made: Sequence[Item], fingerprint: Fingerprint
    ) -> Sequence[Item]:
        while True:
            try:
                if made:
                    reply = await self.client.put(group_id, self.name, made, fingerprint)
                    self.results += sum(isinstance(each, SlotResult) for each in made)
                    if reply.complete:
                        self._complete.add(group_id)
                return made
            except SickResult as error:
                raise EngineSick(str(error), cause=error.cause) from error
            except (LimitExceeded, RecordError) as error:
                made = self._without_refused(group_id, made, error)
            except (BufferUnavailable, StoreError) as error:
                # Puts are idempotent, so repeating one after a lost reply changes nothing.
                await self._wait(error, f"a put of {group_id}")
            except BufferError_ as error:
                if type(error) is not BufferError_:  # else the service itself failed on what it got
                    raise
                made = self._without_refused(group_id, made, error)

    def _without_refused(
        self, group_id: str, made: Sequence[Item], error: BufferError_ | RecordError
    ) -> Sequence[Item]:
        """Returns what to put after a refusal: the results without the reflections or, if there are
        no reflections, failures in place of the results. Raises the error if all results are
        failures already."""
        results = [each for each in made if isinstance(each, SlotResult)]
        refused = [each.name for each in made if isinstance(each, ReflectionRecord)]
        large = isinstance(error, LimitExceeded) or error.cause == "too_large"
        cause, kept = "too_large" if large else "bad_record", results
        if not refused:
            refused = [f"slot {each.slot}" for each in results if each.status != "failed"]
            kept = [SlotResult(each.slot, "failed", cause=cause, of=each.of) for each in results]
        if not refused:
            raise error
        self.metrics.refused[cause] += len(refused)
        what = f"{group_id}: {', '.join(refused)} was refused: {error}"
        log.error("%s", what)
        failure = EpisodeError(what, cause=cause)
        failure.__cause__ = error  # for its traceback
        self.on_failure(failure)
        return kept

    def _granted(self) -> list[str]:
        """Returns the group of the newest lease, if the lease was granted."""
        leasing = self._leasing
        if leasing is None or not leasing.done() or leasing.cancelled() or leasing.exception():
            return []
        reply = leasing.result()
        return [reply.group_id] if isinstance(reply, Lease) else []

    async def _wait(self, error: BufferUnavailable | StoreError, request: str) -> None:
        """Counts and logs a failed request. If the store was full, waits before the next try."""
        self._count(error)
        log.warning("%s waits for the buffer: %s", request, error)
        if isinstance(error, StoreError):  # else the client has waited for a reply
            await asyncio.sleep(STORE_FULL_S)

    def _count(self, error: BufferUnavailable | StoreError) -> None:
        if isinstance(error, StoreError):
            self.metrics.store_full += 1
        else:
            self.metrics.buffer_unavailable += 1


class GroupPuts:
    """Puts the results and reflections of one leased group. A complete group accepts nothing more.
    So the result that would complete it is held back until `rest`, and so is everything after it.
    `busy`: the number of requests in progress."""

    def __init__(
        self,
        requests: BufferRequests,
        lease: Lease,
        fingerprint: Callable[[Sequence[Item]], Fingerprint],
    ) -> None:
        self.requests, self.group_id, self.fingerprint = requests, lease.group_id, fingerprint
        self.busy = 0
        self._open = set(range(lease.plan.slots)) - {result.slot for result in lease.accepted}
        self._held: list[Item] = []
        self._sent = SentProgress(requests.metrics.partial)

    async def save(self, result: SlotResult) -> None:
        """Puts a slot's progress. Raises the errors of `BufferRequests.put_partial`."""
        await self.requests.put_partial(self.group_id, result, self._sent)

    async def put(self, made: Made) -> Made:
        """Puts a result or a reflection. Returns what was put. Raises EngineFailed if a reflection
        is refused, and the errors of `BufferRequests.put`."""
        if isinstance(made, SlotResult):
            self._open.discard(made.slot)
            self._sent.forget(made.slot)
        if self._held or not self._open:
            self._held.append(made)
            return made
        kept: Sequence[Made] = await self._put([made])
        if not kept:
            raise EngineFailed("the buffer refused a reflection", cause="reflection_refused")
        return kept[0]

    async def rest(self) -> list[SlotResult]:
        """Puts what was held back. Returns the results that were put."""
        held, self._held = self._held, []
        if not held:
            return []
        return [each for each in await self._put(held) if isinstance(each, SlotResult)]

    async def _put(self, made: Sequence[Any]) -> Sequence[Any]:
        self.busy += 1
        try:
            return await self.requests.put(self.group_id, made, self.fingerprint(made))
        finally:
            self.busy -= 1
