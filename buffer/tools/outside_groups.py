"""Reads JSON lines of groups: what `r3l-buffer export` wrote, or attempts from anywhere else.

    line of an export   {"group_id", "task", "plan", "state", "results", …}     another run's group
    any other line      {"task": ID or {…}, "attempts": [attempt, …], "source"?}
        attempt         {"token_ids", "spans", "reward", "logprobs"?}  or  {"messages", "reward"}

All of them become groups to insert (buffer.groups.insertion). Nothing is written here.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from buffer.tools import json_values
from r3l.errors import R3LError, RecordError, UserError
from r3l.records import Group, ReflectionRecord, SlotResult, Task, Trajectory, done
from r3l.records.imported import (
    Chat,
    as_imported,
    imported_attempt,
    imported_chat,
    reflection_as_imported,
)

LINE = 64 << 20  # characters of the longest line that is read
ENV = "elsewhere"
"""The environment of a task that a line names by its id alone. No actor plays it."""
OWN = frozenset({"task", "attempts", "source", "kind"})
ATTEMPT = frozenset({"token_ids", "spans", "reward", "logprobs", "actions", "observations",
                     "system", "temperature", "finish", "feedback"})  # fmt: skip
MESSAGES = frozenset({"messages", "reward"})
"""The fields of an attempt that is given as messages. The model's chat format makes the others."""


@dataclass(frozen=True)
class OutsideGroup:
    """A group from a file, ready to insert. `where`: its file and line."""

    where: str
    task: Task
    results: Sequence[SlotResult]
    reflections: Sequence[ReflectionRecord]
    kind: str
    source: str


@dataclass(frozen=True)
class LeftOut:
    """A line that holds no group to replay. `why`: the reason, in a few words."""

    why: str


def read(file: Path, source: str, chat: Callable[[], Chat]) -> Iterator[OutsideGroup | LeftOut]:
    """Yields the group of each line, or why the line is left out. `source`: the source of groups
    that name none. `chat`: makes the chat format of the run's model, for messages. Raises UserError
    with the number of a line that cannot be read."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(LINE), ""), 1):
                if line.strip():
                    yield _group(f"{file} line {number}", line, source, chat)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"file {file}: cannot be read ({error!s:.80})") from None


def _group(where: str, line: str, source: str, chat: Callable[[], Chat]) -> OutsideGroup | LeftOut:
    try:
        found = json.loads(line)
        if not isinstance(found, dict):
            raise RecordError("is not an object; give what r3l-buffer export writes")
        if "results" in found:
            return _exported(where, json_values.record(found, Group), source)
        return _simple(where, found, source, chat)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: is not JSON ({error!s:.80})") from None
    except RecursionError:
        raise UserError(f"{where}: its lists are too deep to be read") from None
    except (R3LError, ValueError, TypeError) as error:
        raise UserError(f"{where}: {error!s:.300}") from None


def _exported(where: str, group: Group, source: str) -> OutsideGroup | LeftOut:
    if group.purpose != "train":
        return LeftOut("evaluation")
    if group.state in ("leased", "filling"):
        return LeftOut("unfinished")
    if group.cause not in ("", "stale"):
        return LeftOut(f"expired as {group.cause}")
    if not group.trajectories:
        return LeftOut("no attempt")
    name = group.source or source
    return OutsideGroup(
        where=where,
        task=group.task,
        results=[as_imported(result, name) for result in group.results],
        reflections=[reflection_as_imported(thought) for thought in group.reflections],
        kind=group.plan.kind,
        source=name,
    )


def _simple(
    where: str, line: dict[str, Any], source: str, chat: Callable[[], Chat]
) -> OutsideGroup:
    _check_keys("the line", line, OWN, {"task", "attempts"})
    attempts, task = line["attempts"], line["task"]
    name, kind = _text("source", line.get("source", source)), _text("kind", line.get("kind", ""))
    if not isinstance(attempts, list) or not attempts:
        raise RecordError("attempts: must be a list of at least one attempt")
    if not isinstance(task, dict):
        task = {"task_id": _text("task", task)}
    made = [_attempt(number, each, name, chat) for number, each in enumerate(attempts)]
    return OutsideGroup(
        where=where,
        task=json_values.record({"env": ENV, "seed": 0} | task, Task),
        results=[done(attempt) for attempt in made],
        reflections=(),
        kind=kind,
        source=name,
    )


def _attempt(slot: int, given: Any, source: str, chat: Callable[[], Chat]) -> Trajectory:
    if not isinstance(given, dict):
        raise RecordError(f"attempt {slot}: is not an object")
    given = dict(given)
    if "messages" in given:
        _check_keys(f"attempt {slot} of messages", given, MESSAGES, {"messages", "reward"})
    else:
        _check_keys(f"attempt {slot}", given, ATTEMPT, {"token_ids", "spans", "reward"})
    try:
        reward = given.pop("reward")
        if "messages" in given:
            attempt = imported_chat(chat(), given["messages"], reward, source=source)
            return _numbered(attempt, slot)
        token_ids, spans = given.pop("token_ids"), given.pop("spans")
        if isinstance(given.get("temperature", 1.0), str | bool | None):
            raise RecordError("temperature: must be a number, 0 if greedy")
        attempt = imported_attempt(token_ids, spans, reward, source=source, slot=slot, **given)
    except (RecordError, ValueError, TypeError) as error:
        raise RecordError(f"attempt {slot}: {error!s:.200}") from None
    return attempt


def _numbered(attempt: Trajectory, slot: int) -> Trajectory:
    return replace(attempt, slot=slot)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RecordError(f"{key} {value!r:.80}: must be text")
    return value


def _check_keys(what: str, given: dict[str, Any], known: frozenset[str], needs: set[str]) -> None:
    if missing := sorted(needs - given.keys()):
        raise RecordError(f"{what}: lacks {', '.join(missing)}")
    if unknown := sorted(given.keys() - known):
        raise RecordError(
            f"{what}: unknown key {unknown[0]!r:.40}; known are {', '.join(sorted(known))}"
        )
