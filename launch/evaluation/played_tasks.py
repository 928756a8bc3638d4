"""An evaluation: tasks, each played several times, with every result on disk as it comes.

    tasks × attempts ─► those without a result yet ─► play, so many at a time ─► results.jsonl
                                                                                      │
                              report: means, pass@k, intervals, by kind of task ◄─────┘

An interrupted evaluation keeps its results and continues. Attempts that failed (through the
environment or the engine) have no result: the report counts them with reward 0, and the next run
plays them again.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from launch.evaluation.statistics import bootstrap, pass_at_k, wilson
from r3l.algorithms.advantages import SUCCESS
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.records import GroupPlan, Task
from r3l.rollout.failures import FirstFailures
from r3l.rollout.group import explore_group
from r3l.rollout.interfaces import Environment, Policy

SETTINGS, RESULTS = "settings.json", "results.jsonl"
COUNTED = ("failed", "faults", "cut")
"""Columns of the report that count causes."""
CUT_ABOVE = 0.2
"""Share of the attempts that were cut off above which people are warned."""


@dataclass(frozen=True)
class Result:
    """One attempt. `cause` is "" unless it failed, which leaves the numbers at 0; `faults`: errors
    of the environment that did not end it; `length`: all its tokens; `cut`: responses that their
    budget cut off."""

    task_id: str
    attempt: int
    family: str = ""
    reward: float = 0.0
    steps: int = 0
    tokens: int = 0
    finish: str = ""
    cause: str = ""
    faults: Sequence[str] = ()
    length: int = 0
    cut: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """The task and the number of the attempt."""
        return self.task_id, self.attempt


class Results:
    """The results of one evaluation, in a folder. Raises UserError if the folder holds those of
    another evaluation or cannot be written."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.path = folder / RESULTS
        known, self._made = folder / SETTINGS, not folder.exists()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if known.exists() and self.path.exists():  # otherwise nothing has been played yet
                _check_same(folder, dict(json.loads(known.read_bytes())), settings)
            else:
                building = folder / f".{SETTINGS}"
                building.write_text(json.dumps(settings, indent=1), encoding="utf-8")
                building.replace(known)
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be used ({error.strerror})") from None
        except UserError:
            raise
        except (ValueError, TypeError):
            raise UserError(
                f"--out {folder}: its {SETTINGS} is not valid JSON; choose another folder"
            ) from None
        self.done: dict[tuple[str, int], Result] = {}
        self._file: TextIO | None = None
        try:
            if self.path.exists():
                self._read()
        except OSError as error:
            raise UserError(f"--out {folder}: cannot be used ({error.strerror})") from None
        except (ValueError, TypeError):
            raise UserError(
                f"--out {folder}: its {RESULTS} has a line that is not a result; choose another "
                "folder"
            ) from None

    def add(self, result: Result) -> None:
        """Keep a result; one that did not fail is on disk when this returns."""
        self.done[result.key] = result
        if result.cause:
            return
        if self._file is None:
            self._file = self.path.open("a", encoding="utf-8")
        self._file.write(json.dumps(asdict(result)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file. Of an evaluation that never began nothing is left."""
        if self._made and not self.done:
            with suppress(OSError):
                (self.path.parent / SETTINGS).unlink()
                self.path.parent.rmdir()  # unless an engine's log is in it
        if self._file is not None:
            self._file.close()

    def _read(self) -> None:
        """Read the results on disk; an incomplete last line is removed."""
        whole, _, torn = self.path.read_bytes().rpartition(b"\n")
        if torn:
            with self.path.open("rb+") as file:
                file.truncate(len(whole) + bool(whole))
        for line in whole.splitlines():
            result = Result(**json.loads(line))
            self.done[result.key] = result


def _check_same(folder: Path, known: dict[str, Any], settings: dict[str, Any]) -> None:
    for name in sorted(known.keys() | settings.keys()):
        if known.get(name) != settings.get(name):
            raise UserError(
                f"--out {folder}: holds an evaluation with {name} {known.get(name)!r}, this one "
                f"has {settings.get(name)!r}; choose another folder"
            )


async def play_all(
    tasks: Sequence[Task],
    attempts: int,
    results: Results,
    policy: Policy,
    make_env: Callable[[Task], Environment],
    config: RunConfig,
    *,
    at_once: int,
) -> None:
    """Play every attempt that has no result yet, `at_once` at a time, at the temperature of
    `config.eval`. Raises EngineDead if the engine dies; results so far are kept."""
    actor = config.actor.model_copy(update={"temperature": config.eval.temperature})
    config = config.model_copy(update={"actor": actor})
    room = asyncio.Semaphore(at_once)
    failures = FirstFailures(say=lambda line: None)  # the log is the console

    async def play(task: Task, attempt: int) -> None:
        async with room:
            seed = zlib.crc32(f"{config.seed}/{task.task_id}/{attempt}".encode())
            (slot,) = await explore_group(
                *(task, policy, partial(make_env, task), config),
                seed=seed,
                plan=GroupPlan(1),
                on_failure=failures,
            )
        family = task.env if config.env.others else str(task.options.get("family", ""))
        if slot.trajectory is None:
            results.add(Result(task.task_id, attempt, family, cause=slot.cause))
            return
        t = slot.trajectory
        results.add(
            Result(
                *(task.task_id, attempt, family, t.reward, t.num_steps, t.generated_tokens),
                finish=t.finish,
                faults=list(t.faults),
                length=len(t.token_ids),
                cut=t.cut,
            )
        )

    missing = [
        (task, attempt)
        for task in tasks
        for attempt in range(attempts)
        if (task.task_id, attempt) not in results.done
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for task, attempt in missing:
                group.create_task(play(task, attempt))
    except ExceptionGroup as ended:
        raise ended.exceptions[0] from ended


def report(results: Sequence[Result], attempts: int, ks: Sequence[int]) -> dict[str, Any]:
    """The metrics of all tasks and of each family (see `metrics`)."""
    families = sorted({r.family for r in results if r.family})
    return {
        "interval": "95 %; success and pass@k: Wilson over tasks; reward, steps, tokens: "
        "percentile bootstrap over tasks",
        "all": metrics(results, attempts, ks),
        "families": {
            name: metrics([r for r in results if r.family == name], attempts, ks)
            for name in families
        },
    }


def metrics(results: Sequence[Result], attempts: int, ks: Sequence[int]) -> dict[str, Any]:
    """Means over tasks of the means over their attempts, with 95 % intervals.

    `success` is pass@1; a failed attempt counts with reward 0; steps and tokens are of attempts
    that did not fail. Each metric is {mean, low, high}. `cut` counts attempts that were cut off, by
    what; `length` has their 95th percentile and maximum too, in tokens.
    """
    tasks: dict[str, list[Result]] = {}
    for result in results:
        tasks.setdefault(result.task_id, []).append(result)
    played = [[r for r in each if not r.cause] for each in tasks.values()]
    out: dict[str, Any] = {
        "tasks": len(tasks),
        "attempts": len(results),
        "failed": dict(Counter(r.cause for r in results if r.cause)),
        "faults": dict(Counter(fault for r in results for fault in r.faults)),
        "cut": dict(Counter(_cut_by(r) for r in results if _cut_by(r))),
    }
    for k in sorted({1, *ks}):
        solved = [sum(r.reward >= SUCCESS for r in each) for each in tasks.values()]
        values = [pass_at_k(attempts, count, k) for count in solved]
        mean = sum(values) / max(len(values), 1)
        out["success" if k == 1 else f"pass@{k}"] = _metric(mean, wilson(mean, len(values)))
    rewards = [sum(r.reward for r in each) / attempts for each in tasks.values()]
    out["reward"] = _mean(rewards)
    out["steps"] = _mean([sum(r.steps for r in each) / len(each) for each in played if each])
    out["tokens"] = _mean([sum(r.tokens for r in each) / len(each) for each in played if each])
    lengths = [r.length for each in played for r in each]
    out["length"] = _mean([sum(r.length for r in each) / len(each) for each in played if each])
    out["length"]["p95"] = float(np.quantile(lengths, 0.95)) if lengths else None
    out["length"]["max"] = float(max(lengths)) if lengths else None
    return out


def cut_off(found: dict[str, Any]) -> str:
    """A warning if more than CUT_ABOVE of all attempts were cut off; "" otherwise."""
    everything = found["all"]
    attempts, cut = max(everything["attempts"], 1), everything["cut"]
    settings = {"context": "actor.max_model_len", "budget": "actor.max_response_tokens"}
    parts = [
        f"{cut[by] / attempts:.0%} of the attempts were cut off by the {by}: raise {setting}"
        for by, setting in settings.items()
        if cut.get(by, 0) > CUT_ABOVE * attempts
    ]
    return "; ".join(parts)


def _cut_by(result: Result) -> str:
    if "context_overflow" in (result.finish, result.cause):
        return "context"
    return "budget" if result.cut else ""


def _mean(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"mean": None, "low": None, "high": None}
    return _metric(sum(values) / len(values), bootstrap(values))


def _metric(mean: float, interval: tuple[float, float]) -> dict[str, float | None]:
    return {"mean": mean, "low": interval[0], "high": interval[1]}


def table(found: dict[str, Any]) -> str:
    """The report for people: a line of metrics for all tasks, and one for each family."""
    columns = [name for name, value in found["all"].items() if isinstance(value, dict)]
    columns = [name for name in columns if name not in COUNTED]
    rows = [["", "tasks", *COUNTED, *columns]]
    for name, values in {"all": found["all"], **found["families"]}.items():
        cells = [_cell(values[column]) for column in columns]
        counts = [str(sum(values[column].values())) for column in COUNTED]
        rows.append([name, str(values["tasks"]), *counts, *cells])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, f"[low, high]: {found['interval']}"])


def _cell(metric: dict[str, float | None]) -> str:
    if metric["mean"] is None:
        return "–"
    return f"{metric['mean']:.4g} [{metric['low']:.4g}, {metric['high']:.4g}]"
