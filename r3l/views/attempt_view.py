"""Makes attempts readable, for the viewer, `r3l-buffer show`, notebooks, TensorBoard, tables and
evaluations.

    Group ─► views ─► AttemptView ─► steps
               ├─► pairs: (attempt, reflection, retry)
               └─► text, for a terminal or a notebook
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from r3l.records import (
    Group,
    Origin,
    Record,
    ReflectionRecord,
    Role,
    SlotResult,
    SlotStatus,
    Trajectory,
)
from r3l.views.tape import UNTRAINED, TapedCall, call_tree, read_tape


class StepView(Record):
    """A turn of the policy. `own`: False if copied from the retried attempt, or from a stored
    attempt of another group. `length`: tokens of the action. `cut`: whether the token budget cut
    off the action."""

    observation: str
    action: str
    versions: str
    seconds: float
    length: int
    own: bool
    reward: float | None = None
    cut: bool = False


class ReflectionView(Record):
    """A reflection. `fields`: empty if the text is not a JSON object. `cause`: why the reflection
    cannot be used, or "". `of`: the slot of the attempt in question, or -1."""

    text: str
    cause: str
    fields: dict[str, str]
    tokens: int
    version: int
    seconds: float
    name: str = ""
    of: int = -1


class AttemptView(Record, forbid_unknown_fields=False):
    """A slot and its attempt, if any. `of`: the slot that it retries, or -1. `base`: the same; if
    it is no retry, its own slot. `origin`: the step of another group's attempt from which it
    started. `source`: where an imported attempt comes from. `length`: tokens of the whole sequence.
    `generated`: tokens sampled for this attempt. `seconds`: sampling time of the attempt's own
    steps. `reflection`: the one that advised it, or that led to no attempt.

    Evaluations store it. Fields from another version of r3l that this version does not know are
    ignored.
    """

    role: Role
    slot: int
    status: SlotStatus
    cause: str
    base: int
    of: int = -1
    pivot: int = -1
    origin: Origin | None = None
    source: str = ""
    reward: float | None = None
    finish: str = ""
    feedback: str = ""
    system: str = ""
    last: str = ""
    steps: tuple[StepView, ...] = ()
    length: int | None = None
    generated: int | None = None
    seconds: float | None = None
    oldest_version: int | None = None
    newest_version: int | None = None
    temperature: float = 1.0
    cut: int = 0
    faults: tuple[str, ...] = ()
    parts: dict[str, float] = msgspec.field(default_factory=dict)
    scores: dict[str, float] = msgspec.field(default_factory=dict)
    reflection: ReflectionView | None = None
    calls: tuple[TapedCall, ...] = ()

    @property
    def title(self) -> str:
        """The attempt's name: `attempt 0`, or `attempt 4, retry of 0 from step 2`."""
        text = f"attempt {self.slot}" + (f", retry of {self.of}" if self.of >= 0 else "")
        if self.origin is not None:
            of = self.origin
            return f"{text} from step {of.step} of attempt {of.slot} in group {of.group_id}"
        return text + (f" from step {self.pivot}" if self.pivot >= 0 else "")


class Pair(Record):
    """An attempt, a reflection on it, and a retry. Each of them may be missing. `slot`: the
    attempt's slot; -1 if the reflection is on no attempt."""

    slot: int
    base: AttemptView | None = None
    reflection: ReflectionView | None = None
    retry: AttemptView | None = None

    @property
    def gain(self) -> float | None:
        """How much more the retry earned than its base; None if either has no reward."""
        if self.base is None or self.retry is None:
            return None
        before, after = self.base.reward, self.retry.reward
        return None if before is None or after is None else after - before


def view(result: SlotResult, reflection: ReflectionRecord | None = None) -> AttemptView:
    shown = AttemptView(
        role=result.role,
        slot=result.slot,
        status=result.status,
        cause=result.cause,
        base=result.of if result.of >= 0 else result.slot,
        of=result.of,
        pivot=-1 if reflection is None else reflection.pivot,
        reflection=None if reflection is None else _reflection(reflection),
    )
    return shown if result.trajectory is None else _with_attempt(shown, result.trajectory)


def views(group: Group) -> list[AttemptView]:
    """Returns the group's results, in the order of the slots, each with the reflection that led to
    it. A retry that was not played gets the first reflection on its attempt that led to no
    retry."""
    ordered = sorted(group.results, key=lambda result: result.slot)
    named = {thought.name: thought for thought in group.reflections}
    left = dict(named)
    for attempt in group.trajectories:
        left.pop(attempt.reflection, None)

    def behind(result: SlotResult) -> ReflectionRecord | None:
        if result.trajectory is not None:
            return named.get(result.trajectory.reflection)
        of = (name for name, thought in left.items() if 0 <= thought.of == result.of)
        return left.pop(next(of, ""), None)

    return [view(result, behind(result)) for result in ordered]


def pairs(group: Group) -> list[Pair]:
    """Pairs attempts with their retries, in the order of the attempts. An attempt with several
    retries is in several pairs, and so is a retry that was itself retried. A reflection that led to
    no retry has a pair of its own, with its attempt."""
    shown = views(group)
    by_slot = {each.slot: each for each in shown}
    first = {each.slot for each in shown if each.of < 0} | set(group.unresolved)
    retries: dict[int, list[AttemptView]] = {}
    for each in shown:
        if each.of >= 0:
            retries.setdefault(each.of, []).append(each)
    used = {each.reflection.name for each in shown if each.reflection is not None}
    others: dict[int, list[ReflectionView]] = {}
    for thought in group.reflections:
        if thought.name not in used:
            others.setdefault(thought.of, []).append(_reflection(thought))
    found = []
    for slot in sorted(first | retries.keys() | others.keys()):
        base, rest = by_slot.get(slot), others.get(slot, [])
        found += [Pair(slot, base, retry.reflection, retry) for retry in retries.get(slot, [])]
        found += [Pair(slot, base, thought) for thought in rest]
        if slot not in retries and not rest:
            found.append(Pair(slot, base))
    return found


def text(group: Group) -> str:
    """Writes a group as text: each attempt as a conversation, with its reflection and reward."""
    return "\n".join(_lines(group))


def _reflection(record: ReflectionRecord) -> ReflectionView:
    try:
        values = json.loads(record.text, strict=False)
    except ValueError:
        values = None
    fields = {}
    if isinstance(values, dict):
        fields = {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in values.items()
            if value is not None
        }
    return ReflectionView(
        record.text,
        record.cause,
        fields,
        record.tokens,
        record.version,
        record.seconds,
        record.name,
        record.of,
    )


def _with_attempt(shown: AttemptView, attempt: Trajectory) -> AttemptView:
    first, extra = attempt.first_played, attempt.extra
    rewards = extra.step_rewards.tolist() or [None] * attempt.num_steps
    cuts = extra.step_cut.tolist() or [False] * attempt.num_steps
    steps = tuple(
        StepView(
            observation=attempt.observations[k],
            action=attempt.actions[k],
            versions=attempt.versions_of(k),
            seconds=float(attempt.step_seconds[k]),
            length=end - start,
            own=k >= first,
            reward=rewards[k],
            cut=cuts[k],
        )
        for k, (start, end) in enumerate(attempt.step_spans.tolist())
    )
    return msgspec.structs.replace(
        shown,
        pivot=attempt.pivot,
        origin=attempt.origin,
        source=attempt.source,
        reward=float(attempt.reward),
        finish=attempt.finish,
        feedback=attempt.feedback,
        system=attempt.system,
        last=attempt.observations[-1],
        steps=steps,
        length=len(attempt.token_ids),
        generated=attempt.generated_tokens,
        seconds=float(attempt.step_seconds[first:].sum()),
        oldest_version=attempt.oldest_version,
        newest_version=attempt.newest_version,
        temperature=attempt.temperature,
        cut=attempt.cut_responses,
        faults=attempt.faults,
        parts=attempt.extra.reward_parts,
        scores=attempt.extra.scores,
        calls=tuple(read_tape(attempt.extra.tape)),
    )


def _lines(group: Group) -> Iterator[str]:
    task, written = group.task, set[int]()
    yield f"group {group.group_id}: {group.state} {group.cause}".rstrip()
    yield f"task {task.task_id} of {task.env}, seed {task.seed}"
    for pair in pairs(group):
        for attempt in (pair.base, pair.retry):
            if attempt is not None and attempt.slot not in written:
                written.add(attempt.slot)
                yield from _attempt_lines(attempt)
        if pair.reflection is not None and pair.retry is None:
            on = f" on attempt {pair.slot}" if pair.slot >= 0 else ""
            yield ""
            yield f"── reflection {pair.reflection.name}{on}"
            yield from _reflection_lines(pair.reflection)


def _attempt_lines(attempt: AttemptView) -> Iterator[str]:
    yield ""
    yield f"── {attempt.title}: {attempt.status} {attempt.cause}".rstrip()
    if attempt.source:
        yield f"   imported from {attempt.source}"
    if attempt.reflection is not None:
        yield from _reflection_lines(attempt.reflection)
    if attempt.reward is not None:
        yield (
            f"   reward {attempt.reward}, {len(attempt.steps)} steps, {attempt.generated} "
            f"tokens, versions {attempt.oldest_version} to {attempt.newest_version}, "
            f"{attempt.finish}"
        )
        whole = any(call.messages for call in attempt.calls)
        turns = _calls(attempt.calls) if whole else conversation(attempt)
        yield from (f"   {line}" for line in turns)


def _reflection_lines(thought: ReflectionView) -> Iterator[str]:
    unusable = f", not usable ({thought.cause})" if thought.cause else ""
    said = f": {thought.text}" if thought.cause or not thought.fields else ""
    yield f"   reflection {thought.name}{unusable}{said}"
    if not unusable:
        yield from (f"   {name}: {value}" for name, value in thought.fields.items())


def _calls(calls: Sequence[TapedCall]) -> Iterator[str]:
    """Yields an agent's calls, each with its new messages and its reply. A call that branches off a
    conversation is indented."""
    for number, depth in call_tree(calls):
        call, space = calls[number], "    " * depth
        yield (
            f"{space}── call {number}, {call.dialect}: {call.tokens} tokens, {call.seconds:.2f} s"
            + ("" if call.trained else f", not trained{_why(call)}")
        )
        for message in (*call.messages, call.reply):
            if message:
                yield f"{space}[{message['role']}] {message_text(message)}"
        if call.missed:
            yield f"{space}[a free reply that did not fit] {call.missed}"


def _why(call: TapedCall) -> str:
    """Says why the reply to a call is not trained, after a colon; "" if that is not recorded."""
    return f": {UNTRAINED[call.untrained]}" if call.untrained in UNTRAINED else ""


def message_text(message: Mapping[str, Any]) -> str:
    """Writes a chat message: its text, then its tool calls."""
    made = [call["function"] for call in message.get("tool_calls") or ()]
    parts = [message.get("content"), *(f"{call['name']}({call['arguments']})" for call in made)]
    return " ".join(str(part) for part in parts if part)


def conversation(attempt: AttemptView) -> Iterator[str]:
    """Yields an attempt's messages as `[role] text`. The last message is the final observation, if
    the environment said anything after the last response."""
    if attempt.system:
        yield f"[system] {attempt.system}"
    for step in attempt.steps:
        yield f"[user] {step.observation}"
        yield f"[assistant] {step.action}"
    if attempt.last:
        yield f"[user] {attempt.last}"
