"""Writes attempts as session traces, and reads such files. The trace viewer of Hugging Face's hub
opens them (huggingface.co/docs/hub/session-traces-format): a header, then messages.

    {"type": "session", "harness": "r3l", "id": "g0000000042-1", "name": "…", "reward": 1.0, …}
    {"type": "message", "message": {"role": "user", "content": "…"}}

`FIELDS` lists the header's further fields, which the viewer ignores.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from r3l.errors import UserError
from r3l.records import Group
from r3l.views.attempt_view import AttemptView, views
from r3l.views.tape import conversations, messages_of

HARNESS = "r3l"
LINE = 64 << 20  # bytes of the longest line that is read
HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""A code of JSON that is half a surrogate pair."""
ROLES = ("user", "assistant", "system", "tool")
FIELDS = (
    "reward", "task", "purpose", "group", "kind", "slot", "of", "pivot", "origin", "steps",
    "advice", "reflection", "finish", "feedback", "versions", "source", "conversation",
)  # fmt: skip
"""What a header says of an attempt. `kind`: how its group was explored. `of`, `pivot`: the slot
that it retries, and from which step. `origin`: the step of another group's attempt from which it
started. `steps`: how many steps it has, if its replies are its steps, which an agent's need not be.
`advice`: what a retry was told. `versions`: the oldest and newest policy that sampled it.
`conversation`: 0, or the number of a further conversation of an agent's attempt."""
ADVICE = "improvement_suggestion"
AS_ROLE = {"developer": "system", "function": "tool"}
"""Older and newer roles of chat completions, and the role that the viewer has for them."""
NAMES = {"toolCalls": "tool_calls", "toolCallId": "tool_call_id",
         "reasoningContent": "reasoning_content"}  # fmt: skip
"""Fields of a message, and their names in chat completions, as `Session.messages` has them."""
_DESCRIBING = ("timestamp", "model")


@dataclass(frozen=True)
class Place:
    """Where a line is: its file, its number from 1 on and its first byte. `str` gives the beginning
    of a message about the line."""

    file: Path
    number: int = 1
    start: int = 0

    def __str__(self) -> str:
        return f"{self.file} line {self.number}"


@dataclass(frozen=True)
class Session:
    """A session of a file. `where`: its header. `messages`: in the form of chat completions, with
    `role` and `content`."""

    where: Place
    header: Mapping[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def reward(self) -> float | None:
        """The reward that the header names. Raises UserError if it is not a number."""
        reward = self.header.get("reward")
        if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
            raise UserError(f"{self.where}: reward {reward!r:.40}: must be a number")
        try:
            return None if reward is None else float(reward)
        except OverflowError:
            raise UserError(f"{self.where}: reward: is too large for a number") from None

    @property
    def replies(self) -> list[dict[str, Any]]:
        """The messages of the assistant."""
        return [message for message in self.messages if message["role"] == "assistant"]


# ── writing ─────────────────────────────────────────────────────────────────────────────────


def sessions_of(
    group: Group, left: Counter[str] | None = None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields (id, lines) for each attempt of a group; for an agent's attempt, one for each of its
    conversations. Counts in `left`, by cause, what the format cannot hold."""
    left = Counter() if left is None else left
    for attempt in views(group):
        if attempt.reward is None:
            continue
        if _lacks_text(attempt):
            left["attempts of tokens without a text"] += 1
            continue
        played = _conversations(attempt)
        for number, messages in enumerate(played):
            name = f"{group.group_id}-{attempt.slot}" + (f"-{number}" if number else "")
            header = _header(group, attempt, number, len(played)) | {"id": name}
            try:
                lines = [{"type": "message", "message": _written(each)} for each in messages]
            except _NoPlaceError as error:
                left[f"conversations with {error}"] += 1
                continue
            yield name, [{"type": "session", "harness": HARNESS} | header, *lines]


class _NoPlaceError(Exception):
    """Names, in a few words, what a session has no place for."""


def _lacks_text(attempt: AttemptView) -> bool:
    """Whether an attempt was stored as tokens, so that its messages would be empty. The text of a
    played response may be empty too, for example if the response ends at once."""
    if _is_taped(attempt):
        return False
    silent = [not step.action for step in attempt.steps if step.length > 1]
    is_unasked = not attempt.system and not any(step.observation for step in attempt.steps)
    return is_unasked or (any(silent) if attempt.source else any(silent) and all(silent))


def _is_taped(attempt: AttemptView) -> bool:
    """Whether an agent played the attempt, and its tape has what it asked."""
    return any(call.messages for call in attempt.calls if not call.model)


def _header(group: Group, attempt: AttemptView, number: int, count: int) -> dict[str, Any]:
    task, thought = group.task, attempt.reflection
    part = f", conversation {number + 1} of {count}" if count > 1 else ""
    facts: dict[str, Any] = {
        "name": f"{task.task_id}, {attempt.title}{part}: reward {attempt.reward:g}",
        "reward": attempt.reward,
        "task": {"task_id": task.task_id, "env": task.env, "seed": task.seed,
                 "options": task.options},
        "purpose": group.purpose,
        "group": group.group_id,
        "slot": attempt.slot,
        "finish": attempt.finish,
        "versions": [attempt.oldest_version, attempt.newest_version],
        "conversation": number,
    }  # fmt: skip
    if group.plan.kind:
        facts["kind"] = group.plan.kind
    if attempt.of >= 0:
        facts["of"] = attempt.of
    if attempt.pivot >= 0:
        facts["pivot"] = attempt.pivot
    if attempt.origin is not None:
        facts["origin"] = msgspec.to_builtins(attempt.origin)
    if not _is_taped(attempt):
        facts["steps"] = len(attempt.steps)
    if thought is not None:
        facts |= {"advice": thought.fields.get(ADVICE, thought.text), "reflection": thought.text}
    more = {"feedback": attempt.feedback, "source": attempt.source}
    return facts | {name: text for name, text in more.items() if text}


def _conversations(attempt: AttemptView) -> list[list[dict[str, Any]]]:
    """Returns the messages of an attempt, or of each conversation of an agent's with the policy."""
    if _is_taped(attempt):
        calls = [call for call in attempt.calls if not call.model]
        chains = conversations(calls)
        return [[*messages_of(calls, chain[-1]), calls[chain[-1]].reply] for chain in chains]
    messages = [{"role": "system", "content": attempt.system}] if attempt.system else []
    for step in attempt.steps:
        messages.append({"role": "user", "content": step.observation})
        messages.append({"role": "assistant", "content": step.action})
    if attempt.last:
        messages.append({"role": "user", "content": attempt.last})
    return [messages]


def _written(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message of chat completions as the viewer reads it."""
    given = str(message.get("role", "user"))
    role = AS_ROLE.get(given, given)
    if role not in ROLES:
        raise _NoPlaceError("a message of another role")
    made: dict[str, Any] = {"role": role, "content": _text(message.get("content"))}
    for name, own in NAMES.items():
        if message.get(own):
            made[name] = message[own]
    if "toolCalls" in made:
        made["toolCalls"] = [_written_call(call) for call in made["toolCalls"]]
    return made


def _text(content: Any) -> str:
    """Returns the text of a message's content, which may be in parts."""
    if not isinstance(content, list):
        return str(content or "")
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise _NoPlaceError("images or other parts that are not text")
    return "\n".join(text for text in texts if text)


def _written_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tool call whose arguments are JSON text. Those of a custom tool are its input."""
    if isinstance(custom := call.get("custom"), Mapping):
        function: Any = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    else:
        function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise _NoPlaceError("calls of tools that are not functions")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    made = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id", ""), "function": made}


# ── reading ─────────────────────────────────────────────────────────────────────────────────


def is_trace(place: Path) -> bool:
    """Whether a file, or a file in a folder, begins with the header of a session."""
    files = _files(place) if place.is_dir() else [place]
    return any(_begins_session(file) for file in files[:1])


def read_sessions(place: Path) -> Iterator[Session]:
    """Yields the sessions of a file, or of all files of a folder, one at a time. Raises UserError,
    which names the line and the rule that it breaks."""
    for file in _files(place) if place.is_dir() else [place]:
        yield from _sessions(Place(file))


def session_at(place: Place) -> Session:
    """Reads a session of `read_sessions` again, at its place. Raises UserError."""
    session = next(_sessions(place), None)
    if session is None:
        raise UserError(f"{place}: the file was changed while it was read; give it again")
    return session


def _sessions(first: Place) -> Iterator[Session]:
    """Yields the sessions of a file from a place on."""
    session: Session | None = None
    for where, line in _lines(first):
        row = _row(where, line)
        if row.get("type") == "session":
            if session is not None:
                yield _whole(session)
            session = Session(where, _checked_header(where, row))
        elif session is None:
            raise UserError(f"{where}: comes before a header of type session")
        elif row.get("type") == "message":
            session.messages.append(_read(where, row.get("message")))
        else:
            raise UserError(f"{where}: type {row.get('type')!r:.40}: must be session or message")
    if session is not None:
        yield _whole(session)


def _whole(session: Session) -> Session:
    if not session.messages:
        raise UserError(f"{session.where}: its session has no message")
    return session


def _lines(first: Place) -> Iterator[tuple[Place, str]]:
    """Yields each line of a file that is not empty, from a place on."""
    file, number, start = first.file, first.number, first.start
    what, remedy = f"file {file}", "give a file of session traces"
    if file.exists() and not file.is_file():
        raise UserError(f"{what}: is a pipe or a device, not a file; save it as a file")
    try:
        with file.open("rb") as lines:
            lines.seek(start)
            while line := lines.readline(LINE + 1):
                where = Place(file, number, start)
                if len(line) > LINE:
                    raise UserError(f"{where}: has more than {LINE >> 20} MiB; shorten it")
                text = line.decode("utf-8" if start else "utf-8-sig")
                if text.strip():
                    yield where, text
                number, start = number + 1, start + len(line)
    except OSError as error:
        raise UserError(f"{what}: cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"{what}: not UTF-8 text; {remedy}") from None


def demonstration(session: Session) -> dict[str, Any] | None:
    """Returns a session as a row of conversations to learn from, up to its last reply. Returns None
    if no reply says or calls anything, or if the reward is 0 or less."""
    replies = [
        n
        for n, message in enumerate(session.messages)
        if message["role"] == "assistant" and (message["content"] or len(message) > 2)
    ]
    if not replies or (session.reward is not None and session.reward <= 0):
        return None
    return {"messages": session.messages[: replies[-1] + 1]}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.jsonl"))


def _begins_session(file: Path) -> bool:
    if not file.is_file():  # a pipe's lines can be read only once
        return False
    try:
        with file.open(encoding="utf-8-sig") as text:
            lines = iter(lambda: text.readline(LINE), "")
            first = next((line for line in lines if line.strip()), "")
        row = json.loads(first)
    except (OSError, ValueError, RecursionError):  # another reader says what is wrong
        return False
    return isinstance(row, dict) and row.get("type") == "session"


def _row(where: Place, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if HALF.search(line):
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{where}: holds half a surrogate pair, such as \\ud800; write the whole character"
        ) from None
    except (ValueError, RecursionError) as error:  # its own "line 1" is that of the text alone
        why = getattr(error, "msg", str(error))
        raise UserError(f"{where}: is not JSON ({why:.80}); correct or remove it") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: must be an object of type session or message")
    return row


def _checked_header(where: Place, row: dict[str, Any]) -> dict[str, Any]:
    for name in ("harness", "id"):
        if not isinstance(row.get(name), str) or not row[name]:
            raise UserError(f"{where}: the session's header needs {name}, a text")
    return row


def _read(where: Place, message: Any) -> dict[str, Any]:
    """Reads a message. Raises UserError for an unknown role or field."""
    if not isinstance(message, dict):
        raise UserError(f"{where}: message: must be an object with a role and a content")
    role, content = message.get("role"), message.get("content", "")
    if role not in ROLES:
        raise UserError(f"{where}: role {role!r:.40}: must be one of {', '.join(ROLES)}")
    if not isinstance(content, str):
        raise UserError(f"{where}: content: must be text")
    made: dict[str, Any] = {"role": role, "content": content}
    for name, value in message.items():
        if name in NAMES and value not in (None, "", []):
            made[NAMES[name]] = value
        elif name not in ("role", "content", *NAMES, *_DESCRIBING):
            raise UserError(f"{where}: {name!r:.40} is not a field of a message; remove it")
    return made


def plain_messages(session: Session) -> tuple[Sequence[Mapping[str, str]], str]:
    """Returns a session's messages and "" if each message has only a role and a text. Otherwise
    returns () and the reason."""
    for message in session.messages:
        if "tool_calls" in message or message["role"] == "tool":
            return (), "tool calls"
        if "reasoning_content" in message:
            return (), "reasoning apart from its text"
    return session.messages, ""
