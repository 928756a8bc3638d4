"""Makes attempts readable, for the viewer, `r3l-buffer show`, notebooks, TensorBoard, tables and
evaluations.

    Group ─► pairs ─► (base, retry) ─► AttemptView ─► steps
               └─► text, for a terminal or a notebook
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from r3l.records import Group, Record, ReflectionRecord, Role, SlotResult, SlotStatus, Trajectory
from r3l.views.tape import TapedCall, call_tree, read_tape


class StepView(Record):
    """A turn of the policy. `own`: False if copied from the base attempt. `length`: tokens of the
    action. `cut`: whether the token budget cut off the action."""

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
    cannot be used, or ""."""

    text: str
    cause: str
    fields: dict[str, str]
    tokens: int
    version: int
    seconds: float


class AttemptView(Record):
    """A slot and its attempt, if any. `base`: in a retry, the slot of the base attempt; else the
    same as `slot`. `length`: tokens of the whole sequence. `generated`: tokens sampled for this
    attempt. `seconds`: sampling time of the attempt's own steps."""

    role: Role
    slot: int
    status: SlotStatus
    cause: str
    base: int
    pivot: int = -1
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
    aux: tuple[str, ...] = ()
    reflection: ReflectionView | None = None
    calls: tuple[TapedCall, ...] = ()

    @property
    def title(self) -> str:
        """The attempt's name: `base 0`, or `retry of base 0 from step 2`."""
        start = f" from step {self.pivot}" if self.pivot >= 0 else ""
        return f"{'retry of ' * (self.role == 'distilled')}base {self.base}{start}"


class Pair(Record):
    """A base slot and one of its retries. If the base or the retry is missing, it is None."""

    slot: int
    base: AttemptView | None
    retry: AttemptView | None

    @property
    def gain(self) -> float | None:
        """How much more the retry earned than its base; None if either has no reward."""
        if self.base is None or self.retry is None:
            return None
        before, after = self.base.reward, self.retry.reward
        return None if before is None or after is None else after - before


def view(result: SlotResult) -> AttemptView:
    thought = result.reflection
    shown = AttemptView(
        role=result.role,
        slot=result.slot,
        status=result.status,
        cause=result.cause,
        base=result.slot,
        pivot=-1 if thought is None else thought.pivot,
        aux=tuple(sample.kind for sample in result.aux),
        reflection=None if thought is None else _reflection(thought),
    )
    return shown if result.trajectory is None else _with_attempt(shown, result.trajectory)


def pairs(group: Group) -> list[Pair]:
    """Pairs the base slots, in order, with their retries. A base with several retries is in several
    pairs."""
    views = [view(result) for result in group.results]
    own = {shown.slot: shown for shown in views if shown.role == "base"}
    retries: dict[int, list[AttemptView | None]] = {}
    for shown in views:
        if shown.role == "distilled":
            retries.setdefault(shown.base, []).append(shown)
    return [
        Pair(slot, own.get(slot), retry)
        for slot in sorted({*range(group.plan.base), *own, *retries})
        for retry in retries.get(slot) or [None]
    ]


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
        record.text, record.cause, fields, record.tokens, record.version, record.seconds
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
        base=attempt.parent if attempt.role == "distilled" else attempt.slot,
        pivot=attempt.pivot,
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
        calls=tuple(read_tape(attempt.extra.tape)),
    )


def _lines(group: Group) -> Iterator[str]:
    task = group.task
    yield f"group {group.group_id}: {group.state} {group.cause}".rstrip()
    yield f"task {task.task_id} of {task.env}, seed {task.seed}"
    for attempt in sorted(
        map(view, group.results), key=lambda attempt: (attempt.base, attempt.role)
    ):
        yield ""
        yield f"── {attempt.title}: {attempt.status} {attempt.cause}".rstrip()
        if (thought := attempt.reflection) is not None:
            unusable = f", not usable ({thought.cause}): {thought.text}" if thought.cause else ""
            yield f"   reflection{unusable}"
            if not unusable:
                yield from (f"   {name}: {value}" for name, value in thought.fields.items())
        if attempt.reward is not None:
            yield (
                f"   reward {attempt.reward}, {len(attempt.steps)} steps, {attempt.generated} "
                f"tokens, versions {attempt.oldest_version} to {attempt.newest_version}, "
                f"{attempt.finish}"
            )
            whole = any(call.messages for call in attempt.calls)
            turns = _calls(attempt.calls) if whole else conversation(attempt)
            yield from (f"   {line}" for line in turns)


def _calls(calls: Sequence[TapedCall]) -> Iterator[str]:
    """Yields an agent's calls, each with its new messages and its reply. A call that branches off a
    conversation is indented."""
    for number, depth in call_tree(calls):
        call, space = calls[number], "    " * depth
        yield (
            f"{space}── call {number}, {call.dialect}: {call.tokens} tokens, {call.seconds:.2f} s"
            + ("" if call.trained else ", not trained")
        )
        for message in (*call.messages, call.reply):
            if message:
                yield f"{space}[{message['role']}] {message_text(message)}"


def message_text(message: Mapping[str, Any]) -> str:
    """Writes a chat message: its text, then its tool calls."""
    made = [call["function"] for call in message.get("tool_calls") or ()]
    parts = [message.get("content"), *(f"{call['name']}({call['arguments']})" for call in made)]
    return " ".join(str(part) for part in parts if part)


def conversation(attempt: AttemptView) -> Iterator[str]:
    """Yields an attempt's messages as `[role] text`. The last message is the final observation."""
    if attempt.system:
        yield f"[system] {attempt.system}"
    for step in attempt.steps:
        yield f"[user] {step.observation}"
        yield f"[assistant] {step.action}"
    yield f"[user] {attempt.last}"
