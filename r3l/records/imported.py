"""Makes attempts that no actor of this run played: from tokens, a chat, or another run's records.

tokens, spans of the responses, reward ─► imported_attempt ─┐
messages of a chat, reward ─────────────► imported_chat ────┤
attempts of another run ──────────────────────► as_imported ┴─► insert (buffer.groups.insertion)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec.structs import replace

from r3l.errors import RecordError
from r3l.records.groups import ReflectionRecord, SlotResult
from r3l.records.trajectory import Trajectory
from r3l.text import plain

ELSEWHERE = -1
"""The policy version of what no learner of this run made."""
UNLIMITED = 1 << 40  # bytes of a text; what a whole group may have is checked when it is inserted
PAIRS = "must be a list of (start, end), one for each response"
RULE = "messages are an optional system message, then user and assistant by turns, as role, content"


class Chat(Protocol):
    """The parts of a chat format that are needed here (r3l.rollout.chat.ChatFormat)."""

    end_id: int

    @property
    def prompt_ids(self) -> tuple[int, ...]: ...
    def open(self, system: str, user: str) -> tuple[int, ...]: ...
    def turn(self, role: str, content: str) -> tuple[int, ...]: ...
    def encode(self, text: str) -> tuple[int, ...]: ...


def imported_attempt(
    token_ids: Sequence[int],
    spans: Sequence[tuple[int, int]],
    reward: float,
    *,
    source: str,
    logprobs: Sequence[float] | None = None,
    actions: Sequence[str] | None = None,
    observations: Sequence[str] | None = None,
    system: str = "",
    **more: Any,
) -> Trajectory:
    """Makes an attempt from tokens.

    `spans`: (start, end) of each of the K responses. `source`: where the attempt comes from.
    `logprobs`: one for each token, or one for each token of the responses; None if unknown. The
    texts `actions` (K) and `observations` (K + 1) are only for display. `more`: further fields of
    Trajectory, such as `step_versions`, the policy versions that sampled the responses (K); they
    are kept if the group is inserted with `own=True`. Raises RecordError if lengths do not match or
    a value is impossible.
    """
    if not isinstance(source, str) or not source:
        raise RecordError(
            f"the source of an imported attempt must be non-empty text, not {source!r:.80}; say in "
            "a few words where the attempt comes from",
            field="source",
        )
    for name, text in (("source", source), ("system", system)):
        _text(name, text)
    ids, edges = _whole("token_ids", token_ids, 1), _whole("spans", spans, 2)
    steps = len(edges)
    if edges.shape != (steps, 2):
        raise RecordError(f"spans {spans!r:.80}: {PAIRS}", field="step_spans")
    if (edges[:, 0] == edges[:, 1]).all():
        raise RecordError(
            f"spans {spans!r:.80}: no response has a token, so there is nothing to learn from",
            field="step_spans",
        )
    oldest = _whole("step_versions", more.pop("step_versions", [ELSEWHERE] * steps), 1)
    newest = _whole("step_newest_versions", more.pop("step_newest_versions", oldest), 1)
    fields: dict[str, Any] = {
        "slot": 0,
        "step_versions": oldest,
        "step_newest_versions": newest,
        "step_seconds": np.zeros(steps, np.float32),
    }
    silent = Trajectory(
        **fields | more,
        token_ids=ids,
        logprobs=np.zeros(len(ids), np.float32),
        step_spans=edges,
        reward=_reward(reward),
        system=system,
        observations=_texts("observations", observations, steps + 1),
        actions=_texts("actions", actions, steps),
        source=source,
    )
    return silent if logprobs is None else _with_logprobs(silent, logprobs)


def imported_chat(
    chat: Chat, messages: Sequence[Mapping[str, str]], reward: float, *, source: str
) -> Trajectory:
    """Makes an attempt from the messages of a chat, written by people or by another system. Its K
    responses are the K assistant messages, tokenized with the chat template. Their
    log-probabilities are unknown. `chat`: the chat format of the run's model. `messages`: mappings
    with `role` and `content`. Raises RecordError unless user and assistant take turns, after an
    optional system message."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise RecordError(f"messages {messages!r:.80}: {RULE}", field="messages")
    turns = [_checked(message) for message in messages]
    system = turns.pop(0)[1] if turns and turns[0][0] == "system" else ""
    roles = [role for role, _ in turns]
    if not roles or roles != [("user", "assistant")[n % 2] for n in range(len(roles))]:
        raise RecordError(f"messages with the roles {roles!s:.80}: {RULE}", field="messages")
    if len(turns) < 2:
        raise RecordError("messages without an assistant's: there is nothing to learn from")
    ids, spans = list[int](), list[tuple[int, int]]()
    for number, (role, text) in enumerate(turns):
        if role == "user":
            ids += chat.turn("user", text) if number else chat.open(system, text)
            continue
        ids += chat.prompt_ids
        response = chat.encode(text)
        spans.append((len(ids), len(ids) + len(response) + 1))
        ids += [*response, chat.end_id]
    said = [text for role, text in turns if role == "user"]
    actions = [text for role, text in turns if role == "assistant"]
    observations = said if len(said) > len(actions) else [*said, ""]
    return imported_attempt(
        ids, spans, reward, source=source, system=system,
        actions=actions, observations=observations,
    )  # fmt: skip


def as_imported(result: SlotResult, source: str, *, own: bool = False) -> SlotResult:
    """Returns a slot's result in the form in which it is inserted. Adds a source if it has none.
    `own`: whether the result comes from this run. If not, its versions, and the groups where its
    attempt began, belong to another run and are marked so."""
    attempt = result.trajectory
    if attempt is None:
        return result
    attempt = replace(attempt, source=attempt.source or source)
    if not own:
        attempt = _elsewhere(attempt, source)
    return replace(result, trajectory=attempt)


def reflection_as_imported(thought: ReflectionRecord, *, own: bool = False) -> ReflectionRecord:
    """Returns a reflection as it is inserted. `own`: see `as_imported`."""
    return thought if own else replace(thought, version=ELSEWHERE)


def _elsewhere(attempt: Trajectory, source: str) -> Trajectory:
    def nowhere(record: Any) -> Any:
        versions = np.full(len(record.step_spans), ELSEWHERE, np.int32)
        return replace(record, step_versions=versions, step_newest_versions=versions)

    origin = attempt.origin
    if origin is not None and "/" not in origin.group_id:  # this run has another group of that id
        origin = replace(origin, group_id=f"{source}/{origin.group_id}")
    segments = tuple(map(nowhere, attempt.extra.segments))
    extra = replace(attempt.extra, segments=segments) if segments else attempt.extra
    moved: Trajectory = replace(nowhere(attempt), origin=origin, extra=extra)
    return moved


def _with_logprobs(attempt: Trajectory, logprobs: Sequence[float]) -> Trajectory:
    try:
        given, mask = np.array(logprobs, np.float32), attempt.response_mask
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(
            f"logprobs {logprobs!r:.80}: must be numbers ({error!s:.80})", field="logprobs"
        ) from None
    if given.shape == (int(mask.sum()),):
        whole = np.zeros(len(mask), np.float32)
        whole[mask] = given
    elif given.shape == mask.shape:
        whole = np.where(mask, given, np.float32(0))
    else:
        raise RecordError(
            f"{given.size} log-probabilities for {len(mask)} tokens, {int(mask.sum())} of them in "
            "responses; give one for each token, or one for each token of the responses",
            field="logprobs",
        )
    return replace(attempt, logprobs=whole)


def _whole(name: str, values: Any, dimensions: int) -> Any:
    """Returns whole numbers as an int32 array. Raises RecordError for anything else."""
    try:
        found = np.array(values)
        exact = found.astype(np.int32)
    except (TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"{name}: must be whole numbers ({error})", field=name) from None
    if found.ndim != dimensions:
        rule = PAIRS if name == "spans" else "must be one list of whole numbers"
        raise RecordError(f"{name} {values!r:.80}: {rule}", field=name)
    if found.dtype.kind not in "iu" or (exact != found).any():
        raise RecordError(f"{name} {values!r:.80}: must be whole numbers of 32 bits", field=name)
    return exact


def _reward(value: Any) -> float:
    """Returns a number as a float. Raises RecordError for text and anything else."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError("text")
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise RecordError(f"reward {value!r:.80}: must be a number", field="reward") from None


def _texts(name: str, values: Any, count: int) -> tuple[str, ...]:
    """Returns texts, `count` empty ones by default. Raises RecordError for anything else."""
    if values is None:
        return ("",) * count
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise RecordError(f"{name} {values!r:.80}: must be a list of texts", field=name)
    if wrong := [each for each in values if not isinstance(each, str)]:
        raise RecordError(f"{name}: {wrong[0]!r:.80} is not text", field=name)
    return tuple(_text(name, each) for each in values)


def _text(name: str, value: str) -> str:
    """Returns a text. Raises RecordError if it cannot be stored."""
    try:
        return plain(value, name, limit=UNLIMITED)
    except ValueError as error:
        raise RecordError(str(error), field=name) from None


def _checked(message: Mapping[str, str]) -> tuple[str, str]:
    """Returns role and content of a message. Raises RecordError if the message is malformed or
    holds anything that would be lost."""
    if not isinstance(message, Mapping):
        raise RecordError(f"message {message!r:.80}: {RULE}", field="messages")
    role, text = (message.get(key) for key in ("role", "content"))
    if not isinstance(role, str) or not isinstance(text, str):
        raise RecordError(f"message {message!r:.80}: {RULE}", field="messages")
    _text("a message", text)
    for key, value in message.items():
        if key not in ("role", "content") and value:
            raise RecordError(
                f"message {message!r:.80}: its {key} would be lost; write it into the content as "
                "the model writes it, or leave it out",
                field="messages",
            )
    return role, text
