"""Training runs of r3l-launch from a cold start, and their lines."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.peers import usage
from benchmarks.real_model.doses import SETTINGS
from benchmarks.real_model.step_rows import computed_tokens
from benchmarks.results.lines import ROOT
from r3l.errors import UserError
from r3l.files import json_lines
from r3l.files.run_folder import RunFolder

VARIANTS: dict[str, tuple[str, ...]] = {
    "grpo": ("algorithm=grpo", "algorithm.kl_coef=0"),
    "r3l": ("algorithm=r3l",),
    "no_reflect": ("algorithm=r3l", "algorithm.reflect=false"),
    "capped": ("algorithm=r3l", "algorithm.sft_share=0.25"),
    "outcome_first": ("algorithm=r3l", "algorithm.outcome_first=true"),
    "gated": ("algorithm=r3l", "algorithm.gate=measured"),
}
"""Settings of each variant."""
CPU = "cpu.jsonl"
MEANS = (
    "learner/forward_s learner/backward_s learner/update_s learner/pack_s learner/step_s "
    "learner/wait_s learner/shared_tokens learner/entropy group/aux_samples "
    "group/guidance_gain group/guidance_gain_se group/trigger_rate group/reflection_valid "
    "group/verified_rate group/without_retries group/no_contrast staleness/generation_s "
    "staleness/reflection_s staleness/retry_s weights/pause_s actor/prefix_hit"
).split()
"""Metrics whose means over the steps are kept in a line."""


def train(model: Path, variant: str, seed: int, folder: Path) -> dict[str, Any]:
    """Make or continue the run in `folder`. Returns the values of its line. Raises UserError if it
    fails."""
    command = [sys.executable, "-m", "launch.cli", "--run", str(folder), "--actors", "1"]
    if (folder / "config.yaml").exists():
        command.append("--resume")
    else:
        command += ["--config", str(SETTINGS), f"model={model}", f"seed={seed}"]
        command += VARIANTS[variant]
    folder.parent.mkdir(parents=True, exist_ok=True)
    spent = [(0, 0.0), *_spent(folder)]  # by an earlier start of the same run
    with folder.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        while process.poll() is None:
            time.sleep(0.5)
            parts = usage(process.pid)[0]
            cpu, steps = sum(parts.values()), len(RunFolder(folder).history().steps)
            if cpu and steps > (_spent(folder) or spent)[-1][0]:
                total, apart = round(spent[-1][1] + cpu, 1), parts if len(spent) == 1 else {}
                json_lines.append(folder / CPU, {"steps": steps, "cpu": total, "parts": apart})
    if process.returncode:
        raise UserError(f"{folder}: r3l-launch ended with {process.returncode}; see its log")
    return line_of(folder) | {"rows": computed_tokens(folder)}


def line_of(folder: Path) -> dict[str, Any]:
    """What a line keeps of a finished run: its curve by step, its evaluations, means of MEANS."""
    history, cpu = RunFolder(folder).history(), dict(_spent(folder))
    steps = [step.metrics for step in history.steps]
    trained = [step["learner/tokens_per_s"] * step["learner/step_s"] for step in steps]
    curve = {
        "tokens": list(accumulate(step["group/generated_tokens"] for step in steps)),
        "trained": [round(tokens) for tokens in accumulate(trained)],
        "cpu": [cpu.get(number) for number in range(1, len(steps) + 1)],
        "success_base": [step.get("group/success_base") for step in steps],
    }
    parts = json_lines.read(folder / CPU, lambda line: line.get("parts", {})).values
    means = {tag: [step[tag] for step in steps if tag in step] for tag in MEANS}
    return {
        "evaluations": [[one.step, one.success] for one in history.evaluations],
        "curve": curve,
        "parts": {part: round(seconds, 1) for part, seconds in parts[-1].items()} if parts else {},
        "means": {tag: round(fmean(values), 4) for tag, values in means.items() if values},
    }


def _spent(folder: Path) -> list[tuple[int, float]]:
    """Steps made and CPU seconds used by then."""
    return json_lines.read(folder / CPU, lambda line: (line["steps"], line["cpu"])).values
