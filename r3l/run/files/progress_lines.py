"""The lines of `progress.jsonl`: a learner's reports to its launcher and to later readers."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from sys import intern
from typing import Any

import msgspec

MEASURED = {"success", "reward", "steps", "tasks", "failed"}
"""Metrics that every evaluation must have."""


@dataclass(frozen=True)
class StepLine:
    """An optimizer step. It made version `step`. `unread`: the beginning of the step's first
    reflection, if none of its reflections can be read."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    time: float = field(default_factory=time.time)
    unread: str = ""


@dataclass(frozen=True)
class EvalLine:
    """An evaluation of version `step`. `metrics`: keyed by tag, without the prefix `eval/`. Raises
    ValueError if one of MEASURED is missing."""

    step: int
    metrics: Mapping[str, float]
    time: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        if lost := MEASURED - self.metrics.keys():
            raise ValueError(f"the evaluation lacks {', '.join(sorted(lost))}")

    @property
    def success(self) -> float:
        """The success rate of attempts, averaged over tasks."""
        return self.metrics["success"]

    @property
    def tasks(self) -> int:
        """How many tasks were played."""
        return int(self.metrics["tasks"])

    @property
    def failed(self) -> int:
        """How many attempts have no result."""
        return int(self.metrics["failed"])


@dataclass(frozen=True)
class AgainLine:
    """A restart from version `step`. The previous learner had reached version `reached`. The steps
    that made versions `step` + 1 to `reached` no longer count."""

    step: int
    reached: int
    time: float = field(default_factory=time.time)


ProgressLine = StepLine | EvalLine | AgainLine
KINDS: dict[str, type[ProgressLine]] = {"step": StepLine, "eval": EvalLine, "again": AgainLine}
"""The class of a line, by the `kind` in its JSON object."""
STEP_BEGINS = b'{"kind": "step"'
"""The beginning of a step's line."""
EVAL_BEGINS = b'{"kind": "eval"'
"""The beginning of an evaluation's line."""


def to_json(line: ProgressLine) -> dict[str, Any]:
    """Returns a line as a flat object, so that many lines make a table."""
    kind = next(name for name, each in KINDS.items() if each is type(line))
    values = {name: value for name, value in asdict(line).items() if value != ""}
    metrics = values.pop("metrics", {})
    return {"kind": kind, "step": line.step, "time": line.time, **values, **metrics}


def from_json(values: Mapping[str, Any]) -> ProgressLine:
    """Reads a line from its JSON object. Raises LookupError, TypeError or ValueError if it is
    malformed."""
    kind = KINDS[values["kind"]]
    own = {each.name for each in fields(kind)} - {"metrics"}
    read = {name: values[name] for name in own if name in values or name != "unread"}
    names = (name for name in values if name not in own and name != "kind")
    read["metrics"] = {intern(name): values[name] for name in names}  # one text for all lines
    line: ProgressLine = msgspec.convert(read, kind)  # its ValidationError is a ValueError
    return line


@dataclass(frozen=True)
class History:
    """The steps not discarded by a restart, and each version's last evaluation; oldest first.
    `damaged`: unreadable lines. `cut`: whether the file ends in half a line."""

    steps: list[StepLine]
    evaluations: list[EvalLine]
    damaged: int = 0
    cut: bool = False

    @property
    def reached(self) -> int:
        """The newest version; 0 before the first step."""
        return self.steps[-1].step if self.steps else 0


def history_of(lines: Iterable[ProgressLine], damaged: int = 0, *, cut: bool = False) -> History:
    """Builds the history from all lines in order. Leaves out steps that a restart lost."""
    steps, evaluations = list[StepLine](), dict[int, EvalLine]()
    for line in lines:
        if isinstance(line, EvalLine):
            evaluations[line.step] = line
            continue
        first_void = line.step if isinstance(line, StepLine) else line.step + 1
        while steps and steps[-1].step >= first_void:
            steps.pop()
        if isinstance(line, StepLine):
            steps.append(line)
    return History(steps, [evaluations[step] for step in sorted(evaluations)], damaged, cut)


def last_steps(newest_first: Iterable[ProgressLine], count: int) -> list[StepLine]:
    """Returns the last `count` steps that `history_of` would keep, oldest first. Takes no more of
    the lines than it needs."""
    steps, first_void = list[StepLine](), math.inf
    for line in newest_first:
        if isinstance(line, AgainLine):
            first_void = min(first_void, line.step + 1)
        elif isinstance(line, StepLine) and line.step < first_void:
            first_void = line.step
            steps.append(line)
            if len(steps) == count:
                break
    return steps[::-1]
