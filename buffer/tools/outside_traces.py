"""Makes groups to insert from session traces (r3l.views.session_trace).

    files ─► every session's place, by group ─► a group's sessions again ─► a group to insert

Sessions of one task and one group become a group. Files that r3l exported name both. In other
files, sessions that begin with the same messages belong to one task. A retry stays a retry of the
same attempt from the same step. Its advice is not stored, since the files lack the reflection's
tokens.

Memory holds one group at a time, and only the places of the sessions of the others.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from buffer.tools import json_values
from buffer.tools.outside_groups import ENV, LeftOut, OutsideGroup
from r3l.errors import R3LError, UserError
from r3l.records import Origin, Task, Trajectory, done
from r3l.records.imported import Chat, as_imported, imported_chat
from r3l.views.session_trace import (
    HARNESS,
    Place,
    Session,
    plain_messages,
    read_sessions,
    session_at,
)


def read_traces(
    place: Path, source: str, chat: Callable[[], Chat], reward: float | None = None
) -> Iterator[OutsideGroup | LeftOut]:
    """Yields the groups of a file or folder of sessions, and why others are left out. `source`: the
    source of sessions that name none. `chat`: makes the chat format of the run's model. `reward`:
    the reward of sessions that name none. Raises UserError with the line that cannot be read."""
    groups: dict[tuple[str, str], list[Place]] = {}
    for session in read_sessions(place):
        with _named(session):
            why = _unfit(session)
            name = str(session.header.get("group", ""))
            key = ("", "") if why else (_task(session).task_id, name)
        if why:
            yield LeftOut(why)
        else:
            groups.setdefault(key, []).append(session.where)
    for places in groups.values():
        sessions = sorted(map(session_at, places), key=_slot)  # files are in the order of names
        kept = _with_bases(sessions)
        for _ in range(len(sessions) - len(kept)):
            yield LeftOut("retries whose attempt is not among the sessions")
        if kept:
            yield _group(kept, source, chat, reward)


@contextmanager
def _named(session: Session) -> Iterator[None]:
    """Names the session in an error about it. A value of a foreign file may break any rule."""
    try:
        yield
    except (R3LError, ValueError, TypeError) as error:
        at = str(session.where)
        raise UserError(str(error) if at in str(error) else f"{at}: {error!s:.300}") from None


def _unfit(session: Session) -> str:
    """Returns why a session cannot become a stored attempt, or ""."""
    header = session.header
    if header.get("purpose", "train") != "train":
        return "evaluation"
    if header.get("conversation", 0):
        return "further conversations of agents"
    _, has = plain_messages(session)
    if has:
        return f"sessions with {has}, which only warmup reads"
    prompts = [message for message in session.messages if message["role"] != "assistant"]
    for what, messages in (("prompts", prompts), ("replies", session.replies)):
        if messages and not any(message["content"] for message in messages):
            return f"sessions whose {what} have no text"
    if _number(session, "pivot") > 0:
        if header.get("steps") != len(session.replies):
            return "attempts from inside another one, whose replies are not their steps"
        if _number(session, "of") < 0 and "origin" not in header:
            return "attempts from inside another one, which their header does not name"
    return ""


def _with_bases(sessions: Sequence[Session]) -> list[Session]:
    """Returns a group's sessions, without the retries of an attempt that is missing, or whose slot
    occurs twice."""
    slots, known = Counter(map(_slot, sessions)), set[int]()

    def fits(session: Session) -> bool:
        return _number(session, "of") < 0 or _number(session, "of") in known

    # A retry may itself be retried. Retries of each other have no first attempt.
    while more := {s for e in sessions if slots[s := _slot(e)] == 1 and fits(e)} - {-1} - known:
        known |= more
    return [session for session in sessions if fits(session)]


def _group(
    sessions: Sequence[Session], source: str, chat: Callable[[], Chat], reward: float | None
) -> OutsideGroup:
    numbers = {_slot(session): number for number, session in enumerate(sessions)}
    results = []
    for number, session in enumerate(sessions):
        with _named(session):
            of = _number(session, "of")
            attempt = replace(
                _attempt(session, chat(), source, reward),
                slot=number,
                of=numbers[of] if of >= 0 else -1,
                pivot=max(_number(session, "pivot"), -1),
                origin=_origin(session),
            )
            results.append(as_imported(done(attempt), attempt.source))
    first, made = sessions[0], results[0].trajectory
    return OutsideGroup(
        where=str(first.where),
        task=_task(first),
        results=results,
        reflections=(),
        kind=_kind(first),
        source=source if made is None else made.source,
    )


def _slot(session: Session) -> int:
    """Returns the slot that a header names, or -1."""
    slot = session.header.get("slot")
    return slot if isinstance(slot, int) and not isinstance(slot, bool) and slot >= 0 else -1


def _number(session: Session, name: str) -> int:
    """Returns a whole number of a header, or -1 if it has none of that name. Raises UserError."""
    value = session.header.get(name, -1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{session.where}: {name} {value!r:.40}: must be a whole number")
    return value


def _kind(session: Session) -> str:
    kind = session.header.get("kind", "")
    if not isinstance(kind, str):
        raise UserError(f"{session.where}: kind {kind!r:.40}: must be text")
    return kind


def _origin(session: Session) -> Origin | None:
    given = session.header.get("origin")
    return None if given is None else json_values.record(given, Origin)


def _task(session: Session) -> Task:
    given = session.header.get("task")
    if isinstance(given, str):
        given = {"task_id": given}
    if given is None:
        asked = [m for m in session.messages if m["role"] in ("system", "user")][:2]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        given = {"task_id": f"trace-{digest[:16]}"}
    if not isinstance(given, dict):
        raise UserError(f"{session.where}: task {given!r:.40}: must be an id or an object")
    made: Task = json_values.record({"env": ENV, "seed": 0} | given, Task)
    return made


def _attempt(session: Session, chat: Chat, source: str, usual: float | None) -> Trajectory:
    reward: Any = usual if session.reward is None else session.reward
    if reward is None:
        raise UserError(
            f"{session.where}: names no reward; give the reward of such sessions with --reward"
        )
    header = session.header
    named = f"{HARNESS} {source}" if header["harness"] == HARNESS else source
    messages, _ = plain_messages(session)
    return imported_chat(chat, messages, reward, source=str(header.get("source") or named))
