"""Writes an evaluation as one page, by itself or against another evaluation of the same tasks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch.inspection.pages import side_by_side
from launch.inspection.pages.markup import (
    Html,
    element,
    facts,
    folded,
    grid,
    listed,
    page,
    paragraph,
    section,
)
from launch.inspection.pages.run_data import tasks_before_and_after
from learner.evaluation.conversation import Conversation
from learner.evaluation.metrics import INTERVAL, Comparison, Estimate, Report
from r3l.settings import yaml_text
from r3l.settings.error_text import shown

SIDES = 6
"""The most tasks that are shown side by side, or attempts that are shown by themselves."""


@dataclass(frozen=True)
class EvaluationData:
    """What the page shows. `reports`: keyed by title, the main report first. `settings`: the
    evaluation's settings (learner.evaluation.evaluation_folder). `panel`: the line about its tasks.
    `others`, `other_settings`: attempts and settings of the evaluation to compare with; empty if
    there is none."""

    reports: Mapping[str, Report]
    attempts: Sequence[Conversation]
    settings: Mapping[str, Any]
    panel: str = ""
    others: Sequence[Conversation] = ()
    other_settings: Mapping[str, Any] = field(default_factory=dict)
    compared: Mapping[str, Comparison] = field(default_factory=dict)


def evaluation_page(data: EvaluationData) -> bytes:
    title = f"Evaluation of {Path(str(data.settings.get('model', 'a model'))).name}"
    body: list[Html] = [element("h1", title), section("What was evaluated", _about(data))]
    body.append(section("Results", *_results(data)))
    if data.compared:
        body.append(section("Against the other evaluation", *_comparison(data)))
    body.append(section("Texts", *_texts(data)))
    body.append(section("Settings", folded("all settings", _yaml(data.settings))))
    body.append(section("What was not measured", listed(_not_measured(data))))
    written = time.strftime("%Y-%m-%d %H:%M")
    body.append(paragraph(f"Written by r3l-eval --html on {written}.", faint=True))
    return page(title, *body)


def _about(data: EvaluationData) -> Html:
    first, other = data.settings, data.other_settings
    env = first.get("env")
    env = env if isinstance(env, dict) else {}
    return facts([
        ("model", f"{first.get('model', 'not recorded')}, {first.get('weights', '')}".strip(", ")),
        ("against", f"{other.get('model', '')}, {other.get('weights', '')}".strip(", ")),
        ("environment", " + ".join([str(env.get("name", "not recorded")), *env.get("others", {})])),
        ("split", first.get("split", "not recorded")),
        ("temperature", first.get("temperature", "not recorded")),
        ("seed", first.get("seed", "not recorded")),
        ("tasks", data.panel),
    ])  # fmt: skip


def _results(data: EvaluationData) -> list[Html]:
    first = next(iter(data.reports.values()))
    names = list(first.all.estimates)
    rows = []
    for title, report in data.reports.items():
        for family, metrics in {"all": report.all, **report.families}.items():
            named = ": ".join(filter(None, (title, family)))
            values = [_estimate(metrics.estimates.get(name, Estimate())) for name in names]
            failed = ", ".join(f"{cause} {count}" for cause, count in metrics.failed.items())
            rows.append([named, metrics.tasks, metrics.attempts, *values, failed or "none"])
    return [
        grid(["", "tasks", "attempts", *names, "failed attempts"], rows),
        paragraph(f"[low, high]: {INTERVAL}.", faint=True),
    ]


def _comparison(data: EvaluationData) -> list[Html]:
    rows = [
        [name, paired.better, paired.worse, paired.same, _estimate(paired.difference)]
        for name, paired in data.compared.items()
    ]
    how = "Task by task: this evaluation less the other; 95 % percentile bootstrap over tasks."
    return [grid(["", "better", "worse", "same", "difference"], rows), paragraph(how, faint=True)]


def _texts(data: EvaluationData) -> list[Html]:
    if data.others:
        chosen = tasks_before_and_after(data.others, data.attempts, ("the other", "this"), SIDES)
        how = (
            "The same tasks, the other evaluation at the left. Chosen by rule: a task with more "
            "reward, one with less and one with the same, in turn, in the order of their names."
        )
        return [paragraph(how, faint=True), *map(side_by_side.before_and_after, chosen)]
    ordered = sorted(data.attempts, key=lambda one: (one.success, one.earned))
    half = SIDES // 2
    chosen_attempts = ordered if len(ordered) <= SIDES else [*ordered[:half], *ordered[-half:]]
    sides = [side_by_side.side(one, f"{one.task_id}, attempt {one.attempt}")
             for one in chosen_attempts]  # fmt: skip
    how = "The attempts with the least reward, then those with the most."
    return [paragraph(how, faint=True), element("div", *sides, class_="pair")]


def _yaml(settings: Mapping[str, Any]) -> Html:
    plain = {key: value for key, value in settings.items() if key != "panel"}
    try:
        text = yaml_text.write(plain)
    except ValueError:
        text = shown(plain)
    return element("div", text, class_="text")


def _not_measured(data: EvaluationData) -> list[str]:
    attempts = min(len(data.attempts) // max(1, len({a.task_id for a in data.attempts})), 99)
    found = ["other sampling seeds, and other seeds of the training"]
    if attempts < 2:
        found.append("how much the attempts at one task differ: each task was played once")
    if not data.others:
        found.append("a difference: no other evaluation was given (--against)")
    if "not_comparable" in data.settings:
        found.append(f"the usual tasks: {data.settings['not_comparable']}")
    return found


def _estimate(estimate: Estimate) -> str:
    if estimate.mean is None:
        return "–"
    return f"{estimate.mean:.4g} [{estimate.low:.4g}, {estimate.high:.4g}]"
