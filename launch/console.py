"""Formats the lines that `r3l-launch` prints while a run is training."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.inspection.snapshot import BALANCED, forecast
from r3l.notices import NOTICE_LINE
from r3l.run import bill
from r3l.run.config import RunConfig
from r3l.run.files.json_lines import GrowingFile
from r3l.run.files.progress_lines import EvalLine, StepLine
from r3l.run.files.run_folder import RunFolder, run_name
from r3l.text import time_span

SHOWN_SHARE = 0.005  # the least that is not printed as 0%
START_LINES_S = 5.0  # between two lines about processes that are starting


class NoticeReader:
    """Reads each notice in a log folder once. Puts the process's name before the notice."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._known = {log: GrowingFile(log) for log in logs.glob("*.log")}

    def new(self) -> list[str]:
        """Returns the notices written since the last call."""
        for log in sorted(self.logs.glob("*.log")):
            self._known.setdefault(log, GrowingFile(log, 0))
        mark = NOTICE_LINE.encode()
        lines = [(log, line) for log, file in self._known.items() for line in file.new()]
        return [
            f"{log.stem}: {line.partition(mark)[2].decode('utf-8', errors='replace').strip()}"
            for log, line in lines
            if mark in line
        ]


SOME = 3  # actors or causes that are named individually


class Startup:
    """Reports which processes are still starting. `ended`: whether all have become ready."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self.ended = False

    def line(self, ready: dict[str, bool]) -> str:
        """Returns a line if one is due, otherwise "". `ready`: whether each process is ready."""
        now = time.monotonic()
        if self.ended or all(ready.values()):
            self.ended = True
            return ""
        if now < self._last + START_LINES_S:
            return ""
        self._last = now
        waits = {"buffer": "opens its store", "learner": "loads its libraries and the model"}
        late = [f"{name} {waits[name]}" for name, up in ready.items() if not up and name in waits]
        actors = [name for name, up in ready.items() if not up and name not in waits]
        if len(actors) > SOME:
            late.append(f"{len(actors)} actors start their engines")
        else:
            late += [f"{name} starts its engine" for name in actors]
        return f"{now - self._began:.0f} s: {', '.join(late)}"


def step_line(recent: Sequence[StepLine], steps: int) -> str:
    """Formats the last step in `recent`. Adds the time left until the run's last step, `steps`."""
    step = recent[-1]
    values, ends = step.metrics, forecast([*recent], steps, step.time).end_s

    def share(name: str) -> str:
        return f"{values[name]:.2f}" if name in values else "  – "

    gain = "group/guidance_gain"
    scatter = values.get(f"{gain}_se", 0.0)  # 0: of a single group, or of equal ones
    error = f" ± {scatter:.2f}" if scatter else ""
    gained = f"gain {values[gain]:+.2f}{error}  " if gain in values else ""
    age, oldest = values.get("staleness/mean", 0.0), values.get("staleness/max", 0.0)
    eta = "" if ends is None else f"ETA {time_span(ends)}  "
    return (
        f"step {step.step:>{len(str(steps))}}/{steps}  {eta}reward {share('group/reward_mean')}  "
        f"success base {share('group/success_base')} retry {share('group/success_retry')}  "
        f"trigger {share('group/trigger_rate')}  {gained}{_lengths(values, 'group/')}"
        f"{_agents(values)}staleness {age:.1f} max {oldest:.0f}  "
        f"{values.get('actor/tokens_per_s', 0):.0f} tok/s  {_used(values)}{who_waits(values)}"
    )


def _used(values: Mapping[str, float]) -> str:
    used = bill.short_line(values)
    return f"{used}  " if used else ""


def _agents(values: Mapping[str, float]) -> str:
    """Formats the agents' calls and the causes of failed slots, if there are any."""
    text = ""
    if "agent/calls_per_s" in values:
        running, calls = values.get("agent/running", 0.0), values["agent/calls_per_s"]
        text = f"agents {running:.0f} with {calls:.1f} calls/s"
        if "agent/trained_share" in values:
            text += f", {values['agent/trained_share']:.0%} of their tokens to train"
        text += "  "
    causes = _causes(values, "group/failed_")
    return text + (f"failed {causes}  " if causes else "")


def _causes(values: Mapping[str, float], start: str = "failed_") -> str:
    """Lists the most frequent causes of failure with counts. `start`: prefix of the metrics."""
    failed = {k.removeprefix(start): n for k, n in values.items() if k.startswith(start)}
    often = sorted(failed.items(), key=lambda item: -item[1])[:SOME]
    return ", ".join(f"{cause} {count:.0f}" for cause, count in often)


def who_waits(values: Mapping[str, float]) -> str:
    """Says whether the learner or the actors limit the pace, and how much of the time the other
    side is idle."""
    learner, actors = values.get("learner/idle_share", 0.0), values.get("actor/idle_share", 0.0)
    if max(learner, actors) < BALANCED:
        return f"balanced: learner idle {learner * 100:.0f} %, actors idle {actors * 100:.0f} %"
    if learner >= actors:
        return f"learner idle {learner * 100:.0f} %: actor-bound"
    return f"actors idle {actors * 100:.0f} %: learner-bound"


def eval_line(evaluation: EvalLine) -> str:
    failed, values = "", evaluation.metrics
    if evaluation.failed:
        share, causes = evaluation.failed / max(evaluation.tasks, 1), _causes(values)
        failed = f", {evaluation.failed} failed ({share:.0%})" + (f": {causes}" if causes else "")
    return (
        f"eval at step {evaluation.step}: success {evaluation.success:.2f}  "
        f"reward {values['reward']:.2f}  steps {values['steps']:.1f}  {_lengths(values)}"
        f"({evaluation.tasks} tasks{failed})"
    )


def _lengths(values: Mapping[str, float], start: str = "") -> str:
    """Formats the lengths of attempts, and how many are cut off. `start`: prefix of the metrics."""
    if f"{start}length_mean" not in values:
        return ""
    mean, p95, most = (values[f"{start}length_{name}"] for name in ("mean", "p95", "max"))
    text = f"tokens {mean:.0f} p95 {p95:.0f} max {most:.0f}  "
    attempts, responses = (values.get(f"{start}cut_{n}", 0) for n in ("attempts", "responses"))
    if max(attempts, responses) >= SHOWN_SHARE:
        text += f"cut off {attempts:.0%} of attempts, {responses:.0%} of responses  "
    return text


def bill_line(run: Path, config: RunConfig, step: int) -> str:
    """Formats what a run has used, and whether that ended it; "" if it has no bill. `step`: the
    last step."""
    processes = RunFolder(run).bill()
    if not processes:
        return ""
    used, of = bill.total(processes.values()), (config.budget, config.cost)
    line = f"bill: {bill.line(used, config.cost)}"
    if spent := bill.spent(used, *of):
        line += f"; {spent}: ended at step {step} of {config.learner.steps} with a checkpoint"
        if step < config.learner.steps:
            again = f"r3l-launch --resume --run {run_name(run)}"
            line += f", continue with {again} {bill.larger(used, *of)}"
    return line


def end_lines(run: Path) -> list[str]:
    """Lists a finished run's models, and useful next commands."""
    models = {"best": "best evaluation", "model": "last step"}
    folders = [f"{run / name} ({what})" for name, what in models.items() if (run / name).is_dir()]
    lines = [f"model: {', '.join(folders)}"] if folders else []
    return [
        *lines,
        f"next: r3l-eval --run {run_name(run)}; tensorboard --logdir {run / 'tensorboard'}; "
        f"r3l-buffer view {run}",
    ]
