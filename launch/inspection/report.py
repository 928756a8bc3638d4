"""`r3l-launch report`: a run as one HTML file that needs neither a server nor a network."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from buffer.storage.store import Store
from buffer.tools import offline
from buffer.viewer import page
from buffer.viewer.view import shown as shown_store
from launch.inspection import corrections, versions
from launch.inspection.history import Line, existing_run, read_progress, settings
from launch.resume import config_file
from r3l.errors import UserError

POINTS = 400  # of a curve; longer ones are thinned
GROUPS = 500  # of each purpose on the page, an even sample of all
CURVES: dict[str, dict[str, str]] = {
    "Success": {"base attempts": "group/success_base", "retries": "group/success_retry"},
    "Reward": {"mean": "group/reward_mean"},
    "Reflection": {
        "attempts retried": "group/trigger_rate",
        "retries that improved": "group/improvement_rate",
        "reflections that could be read": "group/reflection_valid",
    },
    "Loss": {"loss": "learner/loss"},
    "Entropy, nats": {"entropy": "learner/entropy"},
    "Gradient norm": {"norm": "learner/grad_norm"},
    "KL of behaviour and policy, nats": {"KL": "learner/behaviour_kl"},
    "Staleness, versions": {"mean": "staleness/mean", "oldest group": "staleness/max"},
    "Sampled tokens per second": {"tokens": "actor/tokens_per_s"},
    "Idle": {"learner": "learner/idle_share", "actors": "actor/idle_share"},
}
"""Titles, and the lines of each by name: tags of learner.metrics.tags."""


@click.command()
@click.argument("name", metavar="RUN")
@click.option("--out", type=click.Path(path_type=Path), help="file; default: RUN/report.html")
def report(name: str, out: Path | None) -> None:
    """Write a run as one HTML file: curves, the most instructive corrections, configuration and
    versions. The run may go on."""
    run = existing_run(name)
    target = out or run / "report.html"
    written = page.with_data(contents(run))
    partial = target.with_name(target.name + ".partial")
    try:
        partial.write_text(written, encoding="utf-8")
        partial.rename(target)
    except OSError as error:
        raise UserError(
            f"report {target}: cannot be written ({error.strerror}); choose another with --out"
        ) from None
    click.echo(f"{target}: {len(written) / 2**20:.1f} MiB; open it in any browser")


def contents(run: Path) -> dict[str, Any]:
    """The data of the page. Raises UserError for settings or a store that cannot be read."""
    config = settings(run)
    steps, evaluations = read_progress(run)
    data: dict[str, Any] = {
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "run": _run(run, [config.env.title, config.algorithm.name, Path(config.model).name], steps),
        "summary": summary(steps, evaluations, config.learner.steps),
        "curves": curves(steps, evaluations),
        "versions": list(versions.of(run).items()),
        "config": config_file(run).read_text(encoding="utf-8"),
        "corrections": [],
        "groups": [],
        "group": {},
    }
    if (run / "buffer" / "data.mdb").is_file():
        store = Store(run / "buffer", read_only=True)
        try:
            _add_groups(data, store, run)
        finally:
            store.close()
    return data


def summary(steps: Sequence[Line], evaluations: Sequence[Line], planned: int) -> list[str]:
    """What came of the run, in a few words."""
    if not steps:
        return ["no step was trained"]
    words = [f"{steps[-1]['step']} of {planned} steps"]
    if len(steps) > 1:
        seconds = steps[-1]["time"] - steps[0]["time"]
        words.append(f"{seconds / 60:.1f} minutes from the first step to the last")
    if evaluations:
        first, last = evaluations[0]["success"], evaluations[-1]["success"]
        words.append(f"success in evaluations {first:.2f} → {last:.2f}")
    return words


def curves(steps: Sequence[Line], evaluations: Sequence[Line]) -> list[dict[str, Any]]:
    """{name, lines: [{name, points: [[step, value], …]}]}; without curves that have no point."""
    tested = [[line["step"], line["success"]] for line in evaluations]
    found: list[dict[str, Any]] = [
        {"name": "Success in evaluations", "lines": [{"name": "tasks", "points": tested}]}
    ]
    for title, tags in CURVES.items():
        lines = [
            {"name": name, "points": _thin([[s["step"], s[tag]] for s in steps if tag in s])}
            for name, tag in tags.items()
        ]
        found.append({"name": title, "lines": [line for line in lines if line["points"]]})
    return [one for one in found if any(line["points"] for line in one["lines"])]


def _run(run: Path, facts: list[str], steps: Sequence[Line]) -> dict[str, Any]:
    """What the page's viewer asks first; without a store there are no groups."""
    version = steps[-1]["step"] if steps else 0
    return {"title": run.name, "notice": "", "facts": [(fact, fact) for fact in facts],
            "change": 0, "version": version, "total": 0, "listed": 0, "states": {}}  # fmt: skip


def _add_groups(data: dict[str, Any], store: Store, run: Path) -> None:
    rows = list(offline.rows(store))
    what = shown_store(store, run)
    states: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = states.setdefault(row["purpose"], {})
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    data["run"] |= {"notice": what.notice, "total": len(rows), "listed": len(rows),
                    "states": states}  # fmt: skip
    best = corrections.best(store, rows)
    data["group"] = {
        one.group_id: corrections.shown(store, one, what.algorithm, what.texts) for one in best
    }
    data["corrections"] = [
        {"group": one.group_id, "task": one.task, "result": one.result, "advice": one.advice}
        for one in best
    ]
    sample = {row["group"] for purpose in states for row in _sample(rows, purpose)}
    chosen = [row for row in rows if row["group"] in sample | set(data["group"])]
    with store.read() as txn:
        found = {row["group"]: txn.row(row["group"]) for row in chosen}
    data["groups"] = [
        row | {"times": more.times, "rewards": more.rewards}
        for row in reversed(chosen)
        if (more := found[row["group"]]) is not None
    ]


def _sample(rows: list[dict[str, Any]], purpose: str) -> list[dict[str, Any]]:
    return _thin([row for row in rows if row["purpose"] == purpose], GROUPS)


def _thin(values: list[Any], most: int = POINTS) -> list[Any]:
    """At most that many values, evenly, with the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
