"""Formats what `r3l-eval` prints: the report, a comparison, conversations."""

from collections.abc import Mapping, Sequence
from typing import Any

from learner.evaluation.conversation import Conversation
from learner.evaluation.metrics import INTERVAL, Comparison, Estimate, Metrics, Report
from r3l.run.process.command_line import columns

INDENT = "    "


def table(report: Report, further: Mapping[str, Report] = {}, first: str = "") -> str:
    """Formats a table: a line of metrics for all tasks, then a line for each family of tasks.
    `further`: reports at other temperatures, keyed by temperature. `first`: the temperature of
    `report`."""
    names = list(report.all.estimates)
    rows = [["", "tasks", "failed", "faults", *names, "length", "cut off"]]
    parts = {first: report, **further}
    for temperature, part in parts.items():
        for family, metrics in {"all": part.all, **part.families}.items():
            if further:
                family = f"temperature {temperature}: {family}"
            rows.append(
                [
                    family,
                    str(metrics.tasks),
                    str(sum(metrics.failed.values())),
                    str(sum(metrics.faults.values())),
                    *[_estimate(metrics.estimates.get(name, Estimate())) for name in names],
                    *_lengths(metrics),
                ]
            )
    return "\n".join([*columns(rows), f"[low, high]: {INTERVAL}"])


def panel_line(settings: Mapping[str, Any], shipped: Mapping[str, Any]) -> str:
    """Returns a line about the tasks that were played. `settings`: the evaluation's settings.
    `shipped`: the digests of the shipped panels, by environment. Returns "" if the panel is not
    known."""
    panel = settings.get("panel")
    if not isinstance(panel, dict):
        return ""
    digest = panel["digest"] or "unknown, as some tasks could not be opened"
    known = ", as shipped" if digest == shipped.get(panel["env"]) else ""
    line = (
        f"panel: {panel['env']}, {panel['split']}, {panel['tasks']} tasks, digest {digest}{known}"
    )
    why = settings.get("not_comparable")
    return f"{line}\nnot comparable: {why}" if why else line


def comparison_table(compared: Mapping[str, Comparison]) -> str:
    """Returns one line for each compared metric."""
    rows = [["", "better", "worse", "same", "difference"]]
    for name, paired in compared.items():
        counts = [str(count) for count in (paired.better, paired.worse, paired.same)]
        rows.append([name, *counts, _estimate(paired.difference)])
    return "\n".join(columns(rows))


def conversations(attempts: Sequence[Conversation], count: int) -> str:
    """Formats `count` attempts as text, the least successful first."""
    ordered = sorted(attempts, key=lambda attempt: (attempt.success, attempt.earned))
    return "\n\n".join(map(_conversation, ordered[:count]))


def _conversation(attempt: Conversation) -> str:
    facts = [f"reward {attempt.earned:.4g}", attempt.finish]
    facts += [attempt.cause and f"failed: {attempt.cause}"]
    sampled = f"{attempt.tokens} of {attempt.length or 0} tokens sampled"
    facts += [f"{len(attempt.steps)} steps", sampled]
    facts += [f"fault {name}" for name in attempt.faults]
    named = f"{attempt.task_id} attempt {attempt.attempt}"
    lines = [f"━━ {named}: {', '.join(filter(None, facts))}".replace("\n", " ")]
    lines += _titled("system", attempt.system)
    for number, step in enumerate(attempt.steps):
        cut = ", cut off" if step.cut else ""
        reward = "" if step.reward is None else f", reward {step.reward:.4g}"
        lines += _titled(f"observation {number}", step.observation)
        lines += _titled(f"response {number} ({step.length} tokens{cut}{reward})", step.action)
    lines += _titled("last observation", attempt.last) + _titled("feedback", attempt.feedback)
    return "\n".join(lines)


def _titled(name: str, text: str) -> list[str]:
    """Puts a heading above a text. Indents the text, so that none of it looks like a heading."""
    if not text:
        return []
    return [f"── {name}", *(f"{INDENT}{line}" for line in text.split("\n"))]


def _lengths(metrics: Metrics) -> list[str]:
    lengths = metrics.lengths
    if "length_mean" not in lengths:
        return ["–", "–"]
    mean, p95, most = (lengths[f"length_{name}"] for name in ("mean", "p95", "max"))
    attempts, responses = lengths["cut_attempts"], lengths.get("cut_responses", 0.0)
    return [
        f"{mean:.0f}, p95 {p95:.0f}, max {most:.0f}",
        f"{attempts:.0%} of attempts, {responses:.0%} of responses",
    ]


def _estimate(estimate: Estimate) -> str:
    if estimate.mean is None:
        return "–"
    return f"{estimate.mean:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"
