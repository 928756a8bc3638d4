"""Reads reflections: the policy's structured diagnosis of an attempt (R³L, arXiv 2601.03715).

    text of the model  ──parse──►  Reflection  ──triggers_retry──►  retry, or keep the base attempt

K is the number of steps of the attempt; a pivot counts from 0 to K − 1. What each outcome needs:

    outcome                          root cause      suggestion    pivot
    success                          null, absent    null, absent  null
    success_but_inefficient, failure text or null    text          0..K−1
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from r3l.errors import ReflectionError

TrajectoryOutcome = Literal["success", "success_but_inefficient", "failure"]
Cause = Literal[
    "not_json", "missing_field", "bad_outcome", "bad_pivot", "contradiction", "truncated"
]
"""Why a reflection cannot be used:

    not_json       the text holds no JSON object
    missing_field  a needed field is absent, null or empty, or a text is not a string
    bad_outcome    an outcome that is none of the three
    bad_pivot      a pivot that is neither null nor an integer in 0..K−1
    contradiction  a success that names a root cause, a suggestion or a pivot
    truncated      the text or its token budget ended before the JSON object did
"""

FIELDS = (
    "trajectory_summary",
    "root_cause_analysis",
    "trajectory_outcome",
    "improvement_suggestion",
    "retry_from_step",
)
FIELDS_OF_SUCCESS = ("trajectory_summary", "trajectory_outcome", "retry_from_step")
"""The fields that a success needs. Other outcomes need all of FIELDS."""
RE_READ = 4
"""`parse` may read this many times the text's length, since it reads nested objects again."""
TRY_CHARS = 400
"""`parse` counts each object that it tries as this many characters longer."""
MAX_CHARS = 1000
"""The longest string that `json_schema` allows, in characters."""


@dataclass(frozen=True)
class Reflection:
    """A parsed reflection. `retry_from_step`: the pivot k*, or None for a success."""

    trajectory_summary: str
    root_cause_analysis: str | None
    trajectory_outcome: TrajectoryOutcome
    improvement_suggestion: str | None
    retry_from_step: int | None

    def triggers_retry(self, num_steps: int) -> bool:
        """Whether to retry an attempt of K = `num_steps` steps. True if the outcome can be improved
        and 0 ≤ k* < K."""
        pivot = self.retry_from_step
        return (
            self.trajectory_outcome in ("failure", "success_but_inefficient")
            and pivot is not None
            and 0 <= pivot < num_steps
        )


def parse(text: str, num_steps: int, *, truncated: bool = False) -> Reflection:
    """Finds the first usable reflection in `text`. Raises ReflectionError with its Cause.

    Ignores unknown fields. Refuses an object with two values for one key. Reads an empty root cause
    or suggestion as null. `truncated`: whether sampling stopped at its token budget.
    """
    first_error: ReflectionError | None = None
    cut, closed = False, 0  # braces before `closed` are part of something that ends
    left = RE_READ * len(text) + 10_000
    for brace in re.finditer(r'\{(?=\s*(?:["}]|\Z))', text):  # where a JSON object may begin
        start = brace.start()
        try:
            values, end = _decode(text, start)
            return _validated(values, num_steps)
        except ReflectionError as error:
            first_error = first_error or error
        except (ValueError, RecursionError) as error:
            if not cut and start >= closed:
                closed = _end(text, start)
                cut = closed > len(text)
            end = getattr(error, "pos", closed)
        left -= end - start + TRY_CHARS
        if left < 0:
            break
    if cut or (truncated and first_error is None):
        raise _error("truncated", "the reflection ends before its JSON object does")
    raise first_error or _error("not_json", "the reflection holds no JSON object")


def json_schema(num_steps: int, *, outcome_first: bool = False) -> dict[str, Any]:
    """Returns the JSON schema for constrained decoding of a reflection. `parse` accepts every text
    that fits the schema. With `outcome_first`, the outcome comes first."""
    order = sorted(FIELDS, key=lambda name: outcome_first and name != "trajectory_outcome")
    null, text = {"type": "null"}, {"type": "string", "maxLength": MAX_CHARS}

    def branch(outcomes: list[TrajectoryOutcome], *rest: dict[str, Any]) -> dict[str, Any]:
        root_cause, suggestion, pivot = rest
        fields = (text, root_cause, {"enum": outcomes}, suggestion, pivot)
        named = dict(zip(FIELDS, fields, strict=True))
        return {
            "type": "object",
            "properties": {name: named[name] for name in order},
            "required": order,
            "additionalProperties": False,
        }

    success = branch(["success"], null, null, null)
    other = branch(
        ["success_but_inefficient", "failure"],
        {"anyOf": [text, null]},
        text | {"minLength": 1},
        {"enum": list(range(num_steps))},
    )
    return {"oneOf": [success, other]}


SHORTEST = json.dumps(
    dict.fromkeys(FIELDS) | {"trajectory_summary": "", "trajectory_outcome": "success"}
)
"""A reflection with as little text as its schema allows."""


def _decode(text: str, start: int) -> tuple[dict[str, Any], int]:
    """Returns the object that begins at `start`, and its end."""
    return _DECODER.raw_decode(text, start)


def _consistent(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs) and any(values[key] != value for key, value in pairs):
        raise ValueError("one key has two values")
    return values


_DECODER = json.JSONDecoder(strict=False, object_pairs_hook=_consistent)


def _end(text: str, start: int) -> int:
    """Finds the end of the object that begins at `start`; len(text) + 1 if there is no end."""
    depth, in_string = 0, False
    for token in re.compile(r'\\.|["{}]', re.DOTALL).finditer(text, start):
        mark = token.group()
        if mark == '"':
            in_string = not in_string
        elif not in_string and mark in "{}":
            depth += 1 if mark == "{" else -1
            if depth == 0:
                return token.end()
    return len(text) + 1


def _validated(values: dict[str, Any], num_steps: int) -> Reflection:
    outcome, pivot = values.get("trajectory_outcome"), values.get("retry_from_step")
    success = outcome == "success"
    missing = [name for name in (FIELDS_OF_SUCCESS if success else FIELDS) if name not in values]
    if missing:
        raise _error("missing_field", f"the reflection lacks {', '.join(missing)}")
    summary, root_cause, suggestion = (
        _text(values, name)
        for name in ("trajectory_summary", "root_cause_analysis", "improvement_suggestion")
    )
    if summary is None:
        raise _error("missing_field", "trajectory_summary is null")
    if not isinstance(outcome, str) or outcome not in get_args(TrajectoryOutcome):
        raise _error("bad_outcome", f"trajectory_outcome is {outcome!r:.80}")
    # a bool is an int to Python; 2.0 and "2" are not what was asked for
    if pivot is not None and (type(pivot) is not int or not 0 <= pivot < num_steps):
        raise _error("bad_pivot", f"retry_from_step is {pivot!r:.80}, not in 0..{num_steps - 1}")
    if success and (root_cause or suggestion or pivot is not None):
        raise _error("contradiction", "outcome is success, with a root cause, suggestion or pivot")
    if not success and (not suggestion or pivot is None):
        raise _error("missing_field", f"outcome is {outcome}, but suggestion or pivot is missing")
    return Reflection(summary, root_cause or None, outcome, suggestion or None, pivot)  # type: ignore[arg-type]


def _text(values: dict[str, Any], name: str) -> str | None:
    value = values.get(name)
    if value is not None and not isinstance(value, str):
        raise _error("missing_field", f"{name} is {type(value).__name__}, not a string")
    # "\ud800" alone is legal JSON but no text: no tokenizer and no codec could hold it
    return value.encode("utf-8", "replace").decode() if value is not None else None


def _error(cause: Cause, message: str) -> ReflectionError:
    return ReflectionError(message, cause=cause)
