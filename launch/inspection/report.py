"""`r3l-launch report`: writes a run as one HTML file that needs neither a server nor a network."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.viewer import page
from buffer.viewer.attempt_page import Texts, plain_group
from buffer.viewer.view_command import viewed
from launch.inspection import versions
from r3l.config import RunConfig
from r3l.errors import NotFound, RecordError, StoreError, UserError
from r3l.files.progress_lines import EvalLine, History, StepLine
from r3l.files.run_folder import RunFolder, run_folder
from r3l.files.whole_file import write_whole
from r3l.process.command_line import echo
from r3l.records import Group
from r3l.views.attempt_view import Correction, best_corrections

POINTS = 400  # of a curve; longer curves are thinned
CANDIDATES = 2000  # newest groups with contrast that are searched for corrections
CORRECTIONS = 10
ADVICE = 200  # characters of a reflection's advice
GROUPS = 500  # of each purpose: an even sample
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
"""Tags of learner.metrics.tags by the curve's title and the line's name."""


@click.command()
@click.argument("name", metavar="RUN")
@click.option("--out", type=click.Path(path_type=Path), help="file; default: RUN/report.html")
def report(name: str, out: Path | None) -> None:
    """Write a run as one HTML file: curves, the most instructive corrections, configuration and
    versions. The run may still be training."""
    folder = RunFolder(run_folder(name)).started()
    target = out or folder.path / "report.html"
    written = page.with_data(contents(folder))
    try:
        write_whole(target, written)
    except OSError as error:
        raise UserError(
            f"report {target}: cannot be written ({error.strerror}); choose another with --out"
        ) from None
    echo(f"{target}: {len(written) / 2**20:.1f} MiB; open it in any browser")


def contents(folder: RunFolder) -> dict[str, Any]:
    """Collects the page data. Raises UserError if the settings or the store cannot be read."""
    run, config, history = folder.path, folder.settings(), folder.history()
    data: dict[str, Any] = {
        "written": time.strftime("%Y-%m-%d %H:%M"),
        "run": _run(run, config, history.reached),
        "summary": summary(history, config.learner.steps),
        "curves": curves(history.steps, history.evaluations),
        "versions": list(versions.of(folder).items()),
        "config": folder.config_file.read_text(encoding="utf-8"),
        "corrections": [],
        "groups": [],
        "group": {},
    }
    if (folder.store / "data.mdb").is_file():
        with Store(folder.store, read_only=True) as store:
            _add_groups(data, store, run)
    return data


def summary(history: History, planned: int) -> list[str]:
    """Sums up the run's steps, time and evaluations in a few words."""
    steps, evaluations = history.steps, history.evaluations
    if not steps:
        return ["no step was trained"]
    words = [f"{history.reached} of {planned} steps"]
    if len(steps) > 1:
        seconds = steps[-1].time - steps[0].time
        words.append(f"{seconds / 60:.1f} minutes from the first step to the last")
    if evaluations:
        first, last = evaluations[0].success, evaluations[-1].success
        words.append(f"success in evaluations {first:.2f} → {last:.2f}")
    if history.damaged:
        words.append(f"{history.damaged} damaged lines of progress.jsonl are left out")
    return words


def curves(steps: Sequence[StepLine], evaluations: Sequence[EvalLine]) -> list[dict[str, Any]]:
    """Returns [{name, lines: [{name, points: [[step, value], …]}]}], without empty curves."""
    tested = [[line.step, line.success] for line in evaluations]
    plots: list[dict[str, Any]] = [
        {"name": "Success in evaluations", "lines": [{"name": "tasks", "points": tested}]}
    ]
    for title, tags in CURVES.items():
        lines = [{"name": name, "points": _thin(_points(steps, tag))} for name, tag in tags.items()]
        plots.append({"name": title, "lines": [line for line in lines if line["points"]]})
    return [plot for plot in plots if any(line["points"] for line in plot["lines"])]


def _points(steps: Sequence[StepLine], tag: str) -> list[list[float]]:
    return [[line.step, line.metrics[tag]] for line in steps if tag in line.metrics]


def _run(run: Path, config: RunConfig, version: int) -> dict[str, Any]:
    """The header of the page's viewer, before groups are added."""
    facts = [config.env.title, config.algorithm.name, Path(config.model).name]
    return {"title": run.name, "notice": "", "facts": [(fact, fact) for fact in facts],
            "change": 0, "version": version, "total": 0, "listed": 0, "states": {}}  # fmt: skip


def _add_groups(data: dict[str, Any], store: Store, run: Path) -> None:
    rows = list(store_reads.rows(store))
    what = viewed(store, run)
    states: dict[str, dict[str, int]] = {}
    for row in rows:
        counts = states.setdefault(row["purpose"], {})
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    data["run"] |= {"notice": what.notice, "total": len(rows), "listed": len(rows),
                    "states": states}  # fmt: skip
    best = corrections(store, rows)
    data["group"] = {each.group_id: group_of(each, store, what.texts) for each in best}
    data["corrections"] = [_correction_row(each) for each in best]
    by_purpose = ([row["group"] for row in rows if row["purpose"] == each] for each in states)
    sample = {group for groups in by_purpose for group in _thin(groups, GROUPS)}
    chosen = [row for row in rows if row["group"] in sample | set(data["group"])]
    with store.read() as txn:
        stored = {row["group"]: txn.row(row["group"]) for row in chosen}
    data["groups"] = [
        row | {"times": more.times, "rewards": more.rewards}
        for row in reversed(chosen)
        if (more := stored[row["group"]]) is not None
    ]


def _thin(values: list[Any], most: int = POINTS) -> list[Any]:
    """Thins values to at most `most`, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def corrections(store: Store, rows: Sequence[dict[str, Any]]) -> list[Correction]:
    """Picks the most instructive corrections from the newest groups. `rows`: oldest group first."""
    with_contrast = [
        row["group"] for row in reversed(rows) if row["purpose"] == "train" and row["contrast"] > 0
    ]
    return best_corrections(_undamaged(store, with_contrast[:CANDIDATES]), CORRECTIONS)


def _undamaged(store: Store, names: Sequence[str]) -> Iterator[Group]:
    for name in names:
        try:
            yield store_reads.group(store, name)
        except (RecordError, NotFound, StoreError):  # or evicted since; `verify` names damage
            continue


def group_of(correction: Correction, store: Store, texts: Texts) -> dict[str, Any]:
    """Returns a correction's group for the viewer, without its other corrections."""
    group, slot = plain_group(store, correction.group_id, texts), correction.retry.slot
    return group | {
        "pairs": [p for p in group["pairs"] if p["retry"] and p["retry"]["slot"] == slot]
    }


def _correction_row(correction: Correction) -> dict[str, str]:
    reflection = correction.retry.reflection
    return {
        "group": correction.group_id,
        "task": correction.task_id,
        "result": correction.result,
        "advice": reflection.advice[:ADVICE] if reflection else "",
    }
