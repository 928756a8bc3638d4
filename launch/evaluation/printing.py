"""What `r3l-eval` prints: the report as a table, a comparison, conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envs.evaluation.conversation import Conversation
from envs.evaluation.metrics import INTERVAL, Comparison, Estimate, Metrics, Report

INDENT = "    "


def table(report: Report) -> str:
    """A line of metrics for all tasks, and one for each family."""
    names = list(report.all.estimates)
    rows = [["", "tasks", "failed", "faults", *names, "length", "cut off"]]
    for family, metrics in {"all": report.all, **report.families}.items():
        rows.append(
            [
                printable(family),
                str(metrics.tasks),
                str(sum(metrics.failed.values())),
                str(sum(metrics.faults.values())),
                *[_estimate(metrics.estimates[name]) for name in names],
                *_lengths(metrics),
            ]
        )
    return "\n".join([*_columns(rows), f"[low, high]: {INTERVAL}"])


def comparison_table(compared: Mapping[str, Comparison]) -> str:
    """A line for each compared metric."""
    rows = [["", "better", "worse", "same", "difference"]]
    for name, found in compared.items():
        counts = [str(count) for count in (found.better, found.worse, found.same)]
        rows.append([name, *counts, _estimate(found.difference)])
    return "\n".join(_columns(rows))


def conversations(attempts: Sequence[Conversation], count: int) -> str:
    """The text of `count` attempts, those with the least reward first."""
    ordered = sorted(attempts, key=lambda one: (one.success, one.reward))
    return "\n\n".join(_conversation(one) for one in ordered[:count])


def printable(text: str) -> str:
    """The text with every character escaped that a terminal could obey, line breaks excepted."""
    return "".join(
        c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def _conversation(one: Conversation) -> str:
    facts = [f"reward {one.reward:.4g}", one.finish, one.cause and f"failed: {one.cause}"]
    facts += [f"{len(one.turns)} steps", f"{one.tokens} of {one.length} tokens sampled"]
    facts += [f"fault {name}" for name in one.faults]
    named = f"{one.task_id} attempt {one.attempt}"
    lines = [printable(f"━━ {named}: {', '.join(filter(None, facts))}".replace("\n", " "))]
    lines += _said("system", one.system)
    for step, turn in enumerate(one.turns):
        cut = ", cut off" if turn.cut else ""
        reward = "" if turn.reward is None else f", reward {turn.reward:.4g}"
        lines += _said(f"observation {step}", turn.observation)
        lines += _said(f"response {step} ({turn.tokens} tokens{cut}{reward})", turn.action)
    lines += _said("last observation", one.last) + _said("feedback", one.feedback)
    return "\n".join(lines)


def _said(name: str, text: str) -> list[str]:
    """A text under its name, indented: no text can look like a name."""
    if not text:
        return []
    return [f"── {name}", *(f"{INDENT}{line}" for line in printable(text).split("\n"))]


def _lengths(metrics: Metrics) -> list[str]:
    found = metrics.lengths
    if "length_mean" not in found:
        return ["–", "–"]
    mean, p95, most = (found[f"length_{name}"] for name in ("mean", "p95", "max"))
    attempts, responses = found["cut_attempts"], found.get("cut_responses", 0.0)
    return [
        f"{mean:.0f}, p95 {p95:.0f}, max {most:.0f}",
        f"{attempts:.0%} of attempts, {responses:.0%} of responses",
    ]


def _estimate(found: Estimate) -> str:
    if found.mean is None:
        return "–"
    return f"{found.mean:.4g} [{found.low:.4g}, {found.high:.4g}]"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
