"""Text samples for TensorBoard: an attempt, the reflection on it, and the retry from its pivot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from r3l.records import Group, ReflectionRecord, Trajectory

EVERY = 10  # optimizer steps between samples, beginning with the first one
SAMPLES = 2  # of a step
STEPS = 6  # of an attempt, from its pivot on
CHARACTERS = 400  # of an observation or action
REFLECTION = 1500  # characters
FENCE = "~~~~"


def correction_texts(groups: Sequence[Group], version: int) -> list[str]:
    """Markdown of the SAMPLES corrections with the largest gain of different tasks, best first;
    nothing in most steps. A text has at most 14,000 characters."""
    if version % EVERY != 1 % EVERY:
        return []
    found: dict[str, tuple[float, str]] = {}
    for group in groups:
        for base, reflection, retry in _corrections(group):
            gain = retry.reward - base.reward
            if gain > found.get(group.task.task_id, (0.0, ""))[0]:
                found[group.task.task_id] = gain, _markdown(group, base, reflection, retry)
    best = sorted(found.values(), key=lambda one: -one[0])[:SAMPLES]
    return [text for _, text in best]


def _corrections(group: Group) -> Iterator[tuple[Trajectory, ReflectionRecord | None, Trajectory]]:
    bases = {t.slot: t for t in group.trajectories if t.role == "base"}
    for result in group.results:
        retry = result.trajectory
        if retry is not None and retry.role == "distilled" and retry.parent in bases:
            yield bases[retry.parent], result.reflection, retry


def _markdown(
    group: Group, base: Trajectory, reflection: ReflectionRecord | None, retry: Trajectory
) -> str:
    written = reflection.text if reflection else "none"
    return "\n\n".join(
        [
            f"**{group.task.task_id}**, group {group.group_id}: reward {base.reward:.2f} → "
            f"{retry.reward:.2f}, retried from step {retry.pivot}",
            f"**attempt** from step {retry.pivot}",
            *_block(_turns(base, retry.pivot)),
            "**reflection**",
            *_block([_short(written, REFLECTION)]),
            f"**retry** from step {retry.pivot}",
            *_block(_turns(retry, retry.pivot)),
        ]
    )


def _turns(attempt: Trajectory, pivot: int) -> Iterator[str]:
    """The turns from the pivot on, and what followed the last one."""
    start = max(pivot, 0)
    end = min(attempt.num_steps, start + STEPS)
    for step in range(start, end):
        yield f"{step} < {_short(attempt.observations[step], CHARACTERS)}"
        yield f"{step} > {_short(attempt.actions[step], CHARACTERS)}"
    if end < attempt.num_steps:
        yield f"… {attempt.num_steps - end} more steps"
    yield f"  < {_short(attempt.observations[-1], CHARACTERS)}"


def _block(lines: Iterable[str]) -> Iterator[str]:
    text = "\n".join(lines).replace(FENCE, "~~~")
    yield f"{FENCE}\n{text}\n{FENCE}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
