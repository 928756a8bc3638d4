"""Training runs of r3l-launch from a warm-up, and their lines."""

import math
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.peers import usage
from lab.real_model.doses import SETTINGS
from lab.real_model.step_rows import computed_tokens
from lab.results.lines import ROOT
from r3l.errors import UserError
from r3l.run.files import json_lines
from r3l.run.files.run_folder import RunFolder

SHOWN = ("algorithm=r3l", "algorithm.guidance_text=advice", "actor.reflect_temperature=1")
"""As the lines were made: the warm policies were taught to read the advice alone."""
R3L = (*SHOWN, "algorithm.sft_share=null")
OWN = "lab/real_model/controls.py"
_READ = "algorithm.advice='advice: {improvement_suggestion}.'"
"""What re-reading shows of a reflection: the advice, as the world shows it to a retry."""
VARIANTS: dict[str, tuple[str, ...]] = {
    "grpo": ("algorithm=grpo", "algorithm.kl_coef=0"),
    "grpo_float32": ("algorithm=grpo", "algorithm.kl_coef=0", "learner.compute=dtype"),
    "r3l": R3L,
    "no_reflect": (*R3L, "algorithm.reflect=false"),
    "capped": (*SHOWN, "algorithm.sft_share=0.25"),
    "sft_none": (*R3L, "algorithm.sft_weight=0"),
    "unsolved": (*R3L, "algorithm.reflect_on=unsolved"),
    "outcome_first": (*R3L, "algorithm.outcome_first=true"),
    "gated": (*R3L, "algorithm.gate=measured"),
    # About as many CPU seconds as R³L takes for its 20 steps.
    "grpo_long": ("algorithm=grpo", "algorithm.kl_coef=0", "learner.steps=80"),
    "r3l_long": (*R3L, "learner.steps=80"),
    "four_plain": (*R3L, "algorithm.reflect=false", "algorithm.group_size=4"),
    "sft_none_gated": (*R3L, "algorithm.sft_weight=0", "algorithm.gate=measured"),
    "another": (f"algorithm={OWN}:AnothersAdvice", *R3L[1:]),
    # As many attempts a step as the other arms play in eight groups.
    "supervised": (
        *(f"algorithm={OWN}:Supervised", "algorithm.group_size=1", "learner.groups_per_step=64"),
    ),
    "r3l_120": (*R3L, "learner.steps=120"),
    "sft_none_120": (*R3L, "algorithm.sft_weight=0", "learner.steps=120"),
    "rltf": ("algorithm=rltf", *SHOWN[1:]),
    "sdpo": ("algorithm=sdpo", *SHOWN[1:], _READ),
    "rlsd": ("algorithm=rlsd", *SHOWN[1:], _READ),
    "hill": ("algorithm=hill", *SHOWN[1:]),
}
"""Settings of each variant."""
OF_THE_WORKSHOP = ("another", "supervised")
"""Variants whose teacher knows no other world."""
CPU = "cpu.jsonl"
POLL_S = 0.5
STOP_S = 600
"""How long a run may take to end once it is stopped."""
MEANS = (
    "learner/forward_s learner/backward_s learner/update_s learner/pack_s learner/step_s "
    "learner/wait_s learner/shared_tokens learner/entropy group/aux_samples "
    "group/guidance_gain group/guidance_gain_se group/trigger_rate group/reflection_valid "
    "group/verified_rate group/without_retries group/no_contrast time/generation_s "
    "time/reflection_s time/retry_s weights/pause_s actor/prefix_hit"
).split()
"""Metrics whose means over the steps are kept in a line."""


class Stopped(UserError):
    """A run was stopped at its limit of time; it can be continued."""


def train(
    model: Path,
    variant: str,
    seed: int,
    folder: Path,
    more: Sequence[str] = (),
    settings: Path = SETTINGS,
    *,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Make or continue the run in `folder`, from a file of settings and with `more` arguments.
    Returns the values of its line. Raises UserError if it fails, and Stopped after `minutes`."""
    command = [sys.executable, "-m", "launch.cli"]
    command += arguments(model, variant, seed, folder, more, settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        known, left = 0, 60 * (minutes or math.inf)  # not of a clock: both may be halted together
        while process.poll() is None:
            time.sleep(POLL_S)
            left -= POLL_S
            if left < 0:
                _stop(process)
                raise Stopped(f"{folder}: stopped at step {known}; the same command continues it")
            parts, steps = usage(process.pid)[0], len(RunFolder(folder).history().steps)
            if parts and steps > known:
                json_lines.append(folder / CPU, {"steps": steps, "parts": parts})
                known = steps
    if process.returncode:
        raise UserError(f"{folder}: r3l-launch ended with {process.returncode}; see its log")
    return line_of(folder) | {"rows": computed_tokens(folder)}


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a run after a checkpoint, or without one if that takes too long."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def arguments(
    model: Path,
    variant: str,
    seed: int,
    folder: Path,
    more: Sequence[str] = (),
    settings: Path = SETTINGS,
) -> list[str]:
    """The arguments of r3l-launch that make or continue a run."""
    words = ["--run", str(folder), "--actors", "1"]
    if (folder / "config.yaml").exists():
        return [*words, "--resume"]
    words += ["--config", str(settings), f"model={model}", f"seed={seed}"]
    return [*words, *VARIANTS[variant], *more]


def line_of(folder: Path) -> dict[str, Any]:
    """What a line keeps of a finished run: its curve by step, its evaluations, means of MEANS."""
    history, spent = RunFolder(folder).history(), cpu_seconds(folder)
    steps = [step.metrics for step in history.steps]
    trained = [step["learner/tokens_per_s"] * step["learner/step_s"] for step in steps]
    curve = {
        "tokens": list(accumulate(step["group/generated_tokens"] for step in steps)),
        "trained": [round(tokens) for tokens in accumulate(trained)],
        "cpu": [_total(spent.get(number)) for number in range(1, len(steps) + 1)],
        "wall": [round(step.time - history.steps[0].time, 1) for step in history.steps],
        "success_base": [step.get("group/success_base") for step in steps],
        "reliance": [step.get("learner/reliance") for step in steps],
        "guidance_gain": [step.get("group/guidance_gain") for step in steps],
        "no_contrast": [step.get("group/no_contrast") for step in steps],
    }
    means = {tag: [step[tag] for step in steps if tag in step] for tag in MEANS}
    return {
        "evaluations": [[one.step, one.success] for one in history.evaluations],
        "curve": curve,
        "parts": {part: round(each, 1) for part, each in spent.get(len(steps), {}).items()},
        "means": {tag: round(fmean(values), 4) for tag, values in means.items() if values},
    }


def cpu_seconds(folder: Path) -> dict[int, dict[str, float]]:
    """CPU seconds of each part of a run, by how many steps had ended. A part whose process was
    started again counts from there on in addition."""
    lines = json_lines.read(folder / CPU, lambda line: (line["steps"], line["parts"])).values
    total, before = defaultdict[str, float](float), dict[str, float]()
    found = {}
    for steps, parts in lines:
        for part, seconds in parts.items():
            last = before.get(part, 0.0)
            total[part] += seconds - last if seconds >= last else seconds
        before, found[steps] = parts, dict(total)
    return found


def _total(parts: dict[str, float] | None) -> float | None:
    return None if parts is None else round(sum(parts.values()), 1)
