"""A real run that learns little says why, and a healthy one says nothing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SMALL = (
    "learner.groups_per_step=2", "algorithm.group_size=4", "actor.concurrent_requests=8",
    "eval.tasks=1", "eval.every=0", "learner.steps=7",
)  # fmt: skip
HOPELESS = (
    *("--model", str(ROOT / "r3l/models/policies/tiny")),
    *("--env", str(Path(__file__).with_name("hopeless.py")) + ":Hopeless"),
)
CHANCE = ("algorithm=grpo", "env.options.chance=true")
# The first token of every answer is `use`: at this temperature its entropy is 1e-12 nats.
FLAT = ("actor.temperature=0.1", "actor.max_response_tokens=1")
BROKEN = ("learner.lr=0.3", "learner.warmup_steps=0", "learner.grad_clip=1000", "learner.steps=14")


@pytest.mark.parametrize(
    ("arguments", "causes"),
    [
        (["algorithm=grpo", "actor.max_model_len=64"], ["are cut off by the context"]),
        (["actor.max_response_tokens=1"], ["are cut off at their limit"]),
        ([*HOPELESS, "learner.steps=9"],
         ["no response gives an answer", "no success yet in .* rewards of 100% of"]),
        ([*HOPELESS, "env.options.reward=1.0"], ["the tasks are solved already"]),
        (["actor.max_reflection_tokens=22", "algorithm.constrained_reflection=false"],
         ["reflections cannot be read .*; one begins "]),
        ([*HOPELESS, *CHANCE, *FLAT], ["the policy's entropy is"]),
        ([*HOPELESS, *CHANCE, *BROKEN], ["far from the one that sampled|entropy is|KL to the ref"]),
        (["learner.lr=1e-12"], ["lost in rounding"]),
        ([], []),
    ],
    ids="context responses world solved reflections flat broken rounding healthy".split(),
)  # fmt: skip
def test_a_run_that_learns_little_says_why(
    tmp_path: Path, arguments: list[str], causes: list[str]
) -> None:
    command = [sys.executable, "-m", "launch.cli", "--run", str(tmp_path / "run"), "--actors", "1"]
    made = subprocess.run([*command, *SMALL, *arguments], capture_output=True, text=True, cwd=ROOT)
    starts = ("learns little or nothing: ", "note on learning: ")
    said = [line for line in made.stdout.splitlines() if line.startswith(starts)]
    assert made.returncode == 0, made.stdout + made.stderr
    assert all(any(re.search(cause, line) for line in said) for cause in causes), said
    assert any(line.startswith(starts[0]) for line in said) == bool(causes), said
