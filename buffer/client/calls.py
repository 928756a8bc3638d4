"""Offers the buffer's operations as methods of both clients.

Each method makes a Call, which the client sends. BufferClient returns the result.
AsyncBufferClient returns a coroutine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from msgspec.structs import replace

from buffer.client.call_results import Call, Draw, Rest, as_draw, as_lease, get_call, query_call
from buffer.wire import increments, operations
from buffer.wire.operations import DrawHead, Lease, PutAck, Request, Wait
from buffer.wire.parts import joined
from buffer.wire.sockets import Frame
from r3l import codec
from r3l.errors import RecordError
from r3l.records import (
    Group,
    GroupPlan,
    GroupState,
    Purpose,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
    done,
)
from r3l.records.imported import as_imported, reflection_as_imported

Made = SlotResult | ReflectionRecord

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def _numbered(attempts: Sequence[Trajectory | SlotResult]) -> list[SlotResult]:
    """Returns the results of attempts. Numbers them if there are several, all with slot 0. Raises
    RecordError for anything else."""
    if not isinstance(attempts, Sequence):
        raise RecordError(
            f"attempts: a list of attempts is needed, not one {type(attempts).__name__}",
            field="attempts",
        )
    for each in attempts:
        if not isinstance(each, Trajectory | SlotResult):
            raise RecordError(
                f"attempt {each!r:.80}: is not an attempt; make one with r3l.imported_attempt or "
                "r3l.imported_chat",
                field="attempts",
            )
    results = [each if isinstance(each, SlotResult) else done(each) for each in attempts]
    if len(results) < 2 or any(each.slot for each in results):
        return results
    return [_with_slot(each, slot) for slot, each in enumerate(results)]


def _with_slot(result: SlotResult, slot: int) -> SlotResult:
    attempt = result.trajectory
    if attempt is not None:
        attempt = replace(attempt, slot=slot)
    return replace(result, slot=slot, trajectory=attempt)


class ClientMethod(Protocol[P, T_co]):
    """A method of both clients, as type checkers see it."""

    @overload
    def __get__(self, client: BlockingCalls, kind: Any = None) -> Callable[P, T_co]: ...
    @overload
    def __get__(
        self, client: AsyncCalls, kind: Any = None
    ) -> Callable[P, Coroutine[Any, Any, T_co]]: ...


def operation(build: Callable[Concatenate[Any, P], Call[T]]) -> ClientMethod[P, T]:
    """Makes a client method that builds a Call with `build` and sends the Call with `_ask`."""

    @wraps(build)
    def method(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return client._ask(build(client, *args, **kwargs))

    return cast("ClientMethod[P, T]", method)


def sends(request: Callable[P, Request[T]]) -> ClientMethod[P, T]:
    """Makes a method whose arguments are the fields of a request."""

    @wraps(request, updated=())
    def build(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        return Call(request(*args, **kwargs))

    return operation(build)


class Calls:
    """Methods for all operations of the buffer."""

    add_tasks = sends(operations.AddTasks)

    @operation
    def lease(
        self,
        actor: str,
        version: int,
        plan: GroupPlan | None = None,
        metrics: dict[str, float] | None = None,
        *,
        wait_s: float = 0.0,
    ) -> Call[Lease | Wait]:
        """Asks for a group to explore. `plan`: the plan of a new training group; by default, the
        run's algorithm makes it. An evaluation group has one slot. `metrics`: numbers for `stats`.
        `wait_s`: how many seconds, at most 30, the service may keep the request until there is
        work."""
        request = operations.AcquireLease(actor, version, plan, metrics or {}, wait_s)
        return Call(request, as_lease, held_s=wait_s)

    @operation
    def put(
        self,
        group_id: str,
        actor: str,
        results: Made | Sequence[Made],
        fingerprint: tuple[int, str] | None = None,
    ) -> Call[PutAck]:
        """Resolves slots of a leased group and adds reflections to it, all or none. All is on disk
        when the call returns. A repeated put changes nothing.

        `fingerprint`: policy version and hash of the weights that sampled the results. Raises
        LeaseLost if `actor` lost the group, Conflict if a slot already has a different result or a
        name already belongs to a different reflection.
        """
        several = (results,) if isinstance(results, Made) else results
        slots = [each for each in several if isinstance(each, SlotResult)]
        thoughts = [each for each in several if isinstance(each, ReflectionRecord)]
        return Call(
            operations.Put(
                group_id,
                actor,
                fingerprint,
                operations.encoded(slots),
                operations.encoded(thoughts),
            )
        )

    @operation
    def put_partial(
        self,
        group_id: str,
        actor: str,
        result: SlotResult,
        *,
        since: bytes | None = None,
        serial: int = 0,
    ) -> Call[int]:
        """Stores a slot's progress for the group's next actor. Returns 0 if the slot is resolved.

        `since`: the encoded progress that the service already has; then only what is new is sent.
        `serial`: grows with each call of a lease's holder, so that a late call cannot replace newer
        progress. Raises LeaseLost if `actor` does not hold the lease, ProgressGap if the service
        lacks `since`.
        """
        encoded = codec.encode(result)
        data, before = encoded, ""
        if since is not None:
            change = increments.difference(since, encoded)
            if len(change) < len(encoded):
                data, before = change, increments.digest(since)
        digest = increments.digest(encoded)
        return Call(
            operations.PutPartial(group_id, actor, result.slot, data, digest, before, serial)
        )

    renew = sends(operations.Renew)
    release = sends(operations.Release)

    @operation
    def draw(
        self,
        count: int,
        version: int,
        *,
        consumer: str = operations.LEARNER,
        wait_s: float = 0.0,
        explain: Callable[[str], object] = lambda reason: None,
    ) -> Call[Draw | None]:
        """Draws exactly `count` groups at learner version `version`.

        If there are fewer after `wait_s` seconds, calls `explain` with the reason and returns None.
        Raises Conflict if `version` exceeds the learner's version by more than 1.
        """
        reason = ""

        def parse(head: DrawHead, frames: Sequence[Frame]) -> Draw | Rest | None:
            nonlocal reason
            reason = head.reason
            if head.row is None:
                return None
            return as_draw(head, head.row, joined(head.frames, frames))

        request = operations.DrawGroups(count, version, consumer)
        return Call(request, parse, wait_s, lambda: explain(reason))

    @operation
    def get_drawn(self, draw_id: int, at: int) -> Call[list[Frame]]:
        """Returns the next encoded records of a draw, from number `at` on. An empty record stands
        for a recalled attempt that no longer exists. You need not call this: `draw` fetches all
        records."""
        return Call(
            operations.GetDrawn(draw_id, at), lambda reply, frames: joined(reply.frames, frames)
        )

    release_draws = sends(operations.ReleaseDraws)
    commit = sends(operations.Commit)
    discard = sends(operations.Discard)

    @operation
    def insert(
        self,
        task: Task,
        attempts: Sequence[Trajectory | SlotResult],
        *,
        source: str,
        reflections: Sequence[ReflectionRecord] = (),
        kind: str = "",
        own: bool = False,
    ) -> Call[str]:
        """Inserts attempts at a task as one group, as material for replay. Returns the group's id.

        `source`: where they come from. If all attempts have slot 0, they get numbers. `own`:
        policies of this run sampled them, so they keep their versions; otherwise their versions
        become -1. `kind`: the kind of the group's plan. Raises RecordError if an attempt cannot
        belong to this run, Conflict if the task exists with another prompt or if the run's
        algorithm refuses the group.
        """
        if not isinstance(task, Task):
            raise RecordError(
                f"task {task!r:.80}: is not a task; give r3l.Task(ID, ENVIRONMENT, SEED, OPTIONS)",
                field="task",
            )
        results = [as_imported(each, source, own=own) for each in _numbered(attempts)]
        thoughts = [reflection_as_imported(each, own=own) for each in reflections]
        request = operations.Insert(
            task, operations.encoded(results), source, operations.encoded(thoughts), kind
        )
        return Call(request, lambda reply, _: str(reply.group_ids[0]))

    update_priorities = sends(operations.UpdatePriorities)
    set_version = sends(operations.SetVersion)

    @operation
    def query(
        self,
        purpose: Purpose | None = None,
        tag: str | None = None,
        state: GroupState | None = None,
        limit: int = 1000,
        before: str = "",
    ) -> Call[list[Group]]:
        """Returns groups of a purpose, tag and state, newest first. Stops after `limit` groups.
        `before`: only groups that are older than this one. The groups come in parts. Each part
        shows the store at the time when the part is read."""
        return query_call(operations.QueryGroups(purpose, tag, state, limit, before), [])

    ledger = sends(operations.GetLedger)

    @operation
    def get(self, group_ids: Sequence[str]) -> Call[list[Group]]:
        """Returns groups in the order of `group_ids`. An unfinished group has what was accepted so
        far. Raises NotFound if a group was evicted or never made. The groups come in parts. Each
        part shows the store at the time when the part is read."""
        return get_call(group_ids, [])

    stats = sends(operations.GetStats)


class BlockingCalls(Calls):
    """Blocks in each method until the reply has arrived."""


class AsyncCalls(Calls):
    """Returns a coroutine from each method."""
