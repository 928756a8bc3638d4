"""Sends an actor's requests to the buffer. Repeats `lease` and `put` until they succeed.

lease     until granted
put       until on disk, even if the group is cancelled; a refused result becomes a failed slot,
          unless the refusal shows that the engine is sick
partial   once, since the next progress will contain this progress
renew     once a heartbeat; not repeated, because the next heartbeat does the same
leave     waits a moment for unfinished puts, releases the leases and reports the metrics
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from buffer import AsyncBufferClient, Lease, Wait
from r3l.errors import (
    BufferUnavailable,
    EngineSick,
    LimitExceeded,
    RecordError,
    SickResult,
    StoreError,
)
from r3l.records import GroupPlan, SlotResult
from r3l.run.actor_metrics import ActorMetrics

log = logging.getLogger(__name__)

STORE_FULL_S = 2.0  # until a request that found the store full is sent again
PARTIAL_S = 2.0  # for a put of progress; the attempt waits meanwhile
LEAVE_S = 5.0  # for unfinished puts when the actor leaves, and as long again for the release


class BufferRequests:
    """Sends the requests of the actor `name`, and counts failed requests in `metrics`."""

    def __init__(self, name: str, client: AsyncBufferClient, metrics: ActorMetrics) -> None:
        self.name, self.client, self.metrics = name, client, metrics
        self._puts: dict[asyncio.Task[SlotResult], str] = {}  # unfinished, each with its group
        self._complete: set[str] = set()  # groups that need no lease
        self._leasing: asyncio.Task[Lease | Wait] | None = None

    async def lease(self, version: Callable[[], int], plan: GroupPlan) -> Lease:
        """Waits for a lease. Each request states the engine's current `version()`. Raises
        EngineSick if the buffer refuses this version as impossible."""
        while True:
            self._leasing = asyncio.create_task(self.client.lease(self.name, version(), plan))
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
        self, group_id: str, result: SlotResult, fingerprint: tuple[int, str] | None
    ) -> SlotResult:
        """Puts a result. If the result is too large or malformed, puts a failed result instead.
        Returns the result that was put.

        Cancelling the caller does not stop the put. Raises LeaseLost or Conflict. Raises EngineSick
        for a result that a healthy engine cannot produce.
        """
        putting = asyncio.create_task(self._put(group_id, result, fingerprint))
        self._puts[putting] = group_id
        putting.add_done_callback(self._puts.pop)
        return await asyncio.shield(putting)

    async def put_partial(self, group_id: str, result: SlotResult) -> None:
        """Tries once to put a slot's progress. Raises LeaseLost. Raises EngineSick for progress
        that a healthy engine cannot produce."""
        try:
            async with asyncio.timeout(PARTIAL_S):
                await self.client.put_partial(group_id, self.name, result)
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
            lost = await self.client.renew(group_ids, self.name, self.metrics.numbers())
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
                await self.client.renew((), self.name, self.metrics.numbers())
        except (BufferUnavailable, StoreError, TimeoutError) as error:
            log.warning("the leases were not released and will expire: %s", error)

    async def _put(
        self, group_id: str, result: SlotResult, fingerprint: tuple[int, str] | None
    ) -> SlotResult:
        refused = False
        while True:
            try:
                reply = await self.client.put(group_id, self.name, result, fingerprint)
                if reply.complete:
                    self._complete.add(group_id)
                return result
            except SickResult as error:
                raise EngineSick(str(error), cause=error.cause) from error
            except (LimitExceeded, RecordError) as error:
                if refused:
                    raise  # the result is not the reason
                large = isinstance(error, LimitExceeded) or error.cause == "too_large"
                refused, cause = True, "too_large" if large else "bad_record"
                self.metrics.refused[cause] += 1
                log.error("%s: %s %d was refused: %s", group_id, result.role, result.slot, error)
                result = SlotResult(result.role, result.slot, "failed", cause=cause)
            except (BufferUnavailable, StoreError) as error:
                # Puts are idempotent, so repeating one after a lost reply changes nothing.
                await self._wait(error, f"a put of {group_id}")

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
