"""Writes examples for TensorBoard: an attempt, its reflection, and the retry from its pivot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from r3l.records import Group
from r3l.views.attempt_view import AttemptView, Correction, best_corrections

EVERY = 10  # optimizer steps between examples, beginning with the first one
EXAMPLES = 2  # of a step
STEPS = 6  # of an attempt, from its pivot on
CHARACTERS = 400  # of an observation or action
REFLECTION = 1500  # characters
EXAMPLE = 160  # characters of a reflection in a notice
FENCE = "~~~~"


def correction_texts(groups: Sequence[Group], version: int) -> list[str]:
    """Return the EXAMPLES best corrections of a step as Markdown, each from another task. Returns
    nothing in most steps. A text has at most 14,000 characters."""
    if version % EVERY != 1 % EVERY:
        return []
    return [_markdown(correction) for correction in best_corrections(groups, EXAMPLES)]


def unread_reflection(groups: Sequence[Group]) -> str:
    """Return a line with the beginning of a reflection, if no reflection of the step could be read;
    else ""."""
    reflections = [r.reflection for group in groups for r in group.results if r.reflection]
    if not reflections or not all(reflection.cause for reflection in reflections):
        return ""
    first = reflections[0]
    return (
        f"none of the step's {len(reflections)} reflections can be read ({first.cause}); one "
        f"begins {first.text[:EXAMPLE]!r}"
    )


def _markdown(correction: Correction) -> str:
    base, retry, pivot = correction.base, correction.retry, max(correction.retry.pivot, 0)
    return "\n\n".join(
        [
            f"**{correction.task_id}**, group {correction.group_id}: {correction.result}",
            f"**attempt** from step {pivot}",
            *_block(_turns(base, pivot)),
            "**reflection**",
            *_block([_short(retry.reflection.text if retry.reflection else "none", REFLECTION)]),
            f"**retry** from step {pivot}",
            *_block(_turns(retry, pivot)),
        ]
    )


def _turns(attempt: AttemptView, start: int) -> Iterator[str]:
    """Yield the turns from step `start` on, and the final observation."""
    shown = attempt.steps[start : start + STEPS]
    for number, step in enumerate(shown, start):
        yield f"{number} < {_short(step.observation, CHARACTERS)}"
        yield f"{number} > {_short(step.action, CHARACTERS)}"
    if left := len(attempt.steps) - start - len(shown):
        yield f"… {left} more steps"
    yield f"  < {_short(attempt.last, CHARACTERS)}"


def _block(lines: Iterable[str]) -> Iterator[str]:
    text = "\n".join(lines).replace(FENCE, "~~~")
    yield f"{FENCE}\n{text}\n{FENCE}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
