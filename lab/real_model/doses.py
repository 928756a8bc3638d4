"""Warm-ups: of the sums by dose, the number of demonstrated reflections, and of two others.

smollm2 ─┬► 0: answers alone ─► 200: rounds of answer, reflection, retry ─► 1000: 800 rounds more
         ├► workshop: rounds of attempt, reflection, retry; some rules are left for reward to teach
         └► calculator: conversations that use the tool
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from envs.base import Skill
from envs.demonstrations import demonstrating, warmup_tasks
from lab.dry_run import show_learner
from lab.real_model import calculator
from lab.results.lines import ROOT
from r3l.errors import UserError
from r3l.run import config as configuration
from r3l.run.settings.environment import EnvConfig

SETTINGS = Path(__file__).parent / "settings.yaml"
WORKSHOP = Path(__file__).parent / "workshop.yaml"
DOSES = (0, 200, 1000)
ANSWERS, FIRST_ANSWER = 600, 10_000
"""Demonstrated answers of dose 0, and the first of their tasks: those of reflections begin at 0."""
STEPS = {0: 40, 200: 45, 1000: 180}
"""Optimizer steps of a dose's part: each lesson is seen about once."""

WORKSHOP_START = "--steps 200 --tokens-per-batch 4096 --lr 5e-5 --seed 1".split()
"""The workshop's warm-up; four of its twelve rules are withheld."""


def world() -> EnvConfig:
    """The environment of every run."""
    return configuration.load(SETTINGS, []).env


def answers() -> Iterator[str]:
    """Yields the demonstrated answers, as lines for `r3l-learner warmup --data`."""
    name, options = world().name, world().options
    env, rng = demonstrating(name, **options), random.Random(0)
    for task in warmup_tasks(name, options, ANSWERS, start=FIRST_ANSWER):
        asked, _ = env.reset(seed=task.seed, options=task.options)
        texts = {
            "system": env.spec.system_prompt,
            "user": asked,
            "assistant": env.demonstrate(Skill(), rng),
        }
        messages = [{"role": role, "content": text} for role, text in texts.items()]
        yield json.dumps({"messages": messages})


def warm(dose: int, policies: Path, *, dry_run: bool = False) -> Path:
    """Make the policy of a dose, and those before it, unless they are there; a killed one
    continues. A dry run prints the commands instead."""
    out = policies / f"dose-{dose}"
    if (out / "warmup.json").exists():
        return out
    steps = [str(STEPS[dose])]
    if dose == DOSES[0]:
        data = _data(policies / "answers.jsonl", answers(), dry_run)
        learned = ["--model", "smollm2", "--data", data, "--lr", "5e-5"]
        learned += ["--tokens-per-batch", "1024"]
    else:
        before = warm(DOSES[DOSES.index(dose) - 1], policies, dry_run=dry_run)
        config = json.dumps(world().options["config"])
        learned = ["--model", str(before), "--env", world().name, "--set", f"config={config}"]
        learned += ["--seed", str(dose), "--lr", "3e-5", "--tokens-per-batch", "2400"]
    _warmup(out, ["--steps", *steps, *learned], dry_run)
    return out


def warm_workshop(policies: Path, *, dry_run: bool = False) -> Path:
    """Make the workshop's policy unless it is there. A dry run prints the command instead."""
    out = policies / "workshop"
    if not (out / "warmup.json").exists():
        _warmup(out, ["--model", "smollm2", "--env", "workshop", *WORKSHOP_START], dry_run)
    return out


def warm_calculator(policies: Path, *, dry_run: bool = False) -> Path:
    """Make the calculator agent's policy unless it is there. A dry run prints the command
    instead."""
    out = policies / "calculator"
    if not (out / "warmup.json").exists():
        data = _data(policies / "calculator.jsonl", calculator.conversations(), dry_run)
        _warmup(out, ["--model", "smollm2", "--data", data, *calculator.START], dry_run)
    return out


def _data(file: Path, lines: Iterator[str], dry_run: bool) -> str:
    """The name of a file of these lines, which is written; a dry run only makes the first line."""
    if dry_run:
        next(lines)
        return str(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(file)


def warm_up(out: Path, words: Sequence[str], dry_run: bool) -> None:
    """Make a warm-up in `out` unless it is there. A dry run prints the command instead."""
    if not (out / "warmup.json").exists():
        _warmup(out, words, dry_run)


def _warmup(out: Path, words: Sequence[str], dry_run: bool) -> None:
    command = ["warmup", "--out", str(out), *words, "--compute", "bfloat16"]
    command += ["--guidance-text", "advice"]
    if dry_run:
        show_learner(*command)
        return
    made = subprocess.run([sys.executable, "-m", "learner.cli", *command], cwd=ROOT, check=False)
    if made.returncode:
        raise UserError(f"{out}: the warm-up failed")
