"""Shows attempts side by side: before and after, and an attempt with its retry."""

from collections.abc import Iterator, Sequence

from launch.inspection.pages.markup import Html, element, joined, long_text, paragraph
from launch.inspection.pages.run_data import BeforeAndAfter
from r3l.views.attempt_view import AttemptView, Pair

TURNS = 8
"""The most turns of an attempt that are shown: the first and the last ones."""


def before_and_after(shown: BeforeAndAfter) -> Html:
    """Shows a task before and after training."""
    first, last = shown.when
    return element(
        "article", element("h3", f"{shown.task}: {_change(shown.change)}"),
        element("div", side(shown.before, first), side(shown.after, last), class_="pair"),
    )  # fmt: skip


def retry(task: str, pair: Pair) -> Html:
    """Shows an attempt, the reflection on it, and its retry."""
    advice = pair.reflection
    said: list[Html] = []
    if advice is not None:
        for name, value in advice.fields.items() or [("reflection", advice.text)]:
            said += [element("b", name.replace("_", " ")), long_text(value)]
    sides = [
        side(one, one.title.partition(", ")[2] or one.title)
        for one in (pair.base, pair.retry)
        if one is not None
    ]
    return element(
        "article", element("h3", f"{task}: {_change(pair.gain or 0.0)}"), *said,
        element("div", *sides, class_="pair"),
    )  # fmt: skip


def side(attempt: AttemptView, when: str) -> Html:
    """Shows one attempt: its reward and its turns."""
    reward = "no reward" if attempt.reward is None else f"reward {attempt.reward:.3g}"
    more = [f"fault {name}" for name in attempt.faults]
    if attempt.cause:
        more.append(f"failed: {attempt.cause}")
    if attempt.cut:
        more.append(f"{attempt.cut} responses cut off")
    title = ", ".join([f"{when}: {reward}", *more])
    return element("div", element("b", title), *_turns(attempt), class_="side")


def _turns(attempt: AttemptView) -> Iterator[Html]:
    if attempt.system:
        summary = element("summary", "system prompt")
        yield element("details", summary, long_text(attempt.system))
    steps, half = attempt.steps, TURNS // 2
    for number, step in enumerate(steps):
        left_out = len(steps) - TURNS
        if left_out > 0 and number == half:
            yield paragraph(f"… {left_out} turns are left out", faint=True)
        if left_out > 0 and half <= number < half + left_out:
            continue
        if step.observation:
            yield long_text(step.observation)
        yield long_text(step.action or "(an empty response)", "assistant")
        if step.cut:
            yield paragraph("cut off by the budget of tokens", faint=True)
    if attempt.last:
        yield long_text(attempt.last)
    if attempt.feedback:
        yield joined(element("b", "feedback"), long_text(attempt.feedback))
    if not steps:
        yield paragraph("no response", faint=True)


def _change(change: float) -> str:
    if not change:
        return "the same reward"
    return f"reward {change:+.3g}"


def counts(changes: Sequence[float]) -> str:
    """Says how many of the changes are for the better, how many for the worse, and how many are
    0."""
    better, worse = sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    return f"{better} better, {worse} worse, {len(changes) - better - worse} the same"
