"""A run of an agent: the program of the page trains, and a killed actor leaves no agent behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.actors.agents.test_agent_attempt import left_behind
from tests.system.test_actor import until

pytestmark = pytest.mark.system
ROOT = Path(__file__).parents[2]


def test_the_program_of_the_page_trains(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "agents.md").read_text("utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(shown.splitlines()) <= 20
    small = {"learner.steps": 1, "learner.groups_per_step": 2}
    small |= {"eval.tasks": 2, "actor.max_response_tokens": 16}
    model = f'"builtin", {json.dumps(small)[1:-1]}'
    program = shown.replace('"~/models/Qwen2.5-1.5B-Instruct"', model)
    (tmp_path / "sums.py").write_text(program.replace('run="sums"', 'run="sums", actors=1'))
    ran = subprocess.run(
        [sys.executable, "sums.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "runs" / "sums" / "model").is_dir()


def test_a_killed_actor_leaves_no_agent_behind(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from tests.actors.agents.test_agent_attempt import config_of, play\n"
        "play(config_of(Path(sys.argv[1]), 'silent'), attempts=3)\n"
    )
    actor = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    until(lambda: len(left_behind(actor.pid)) == 3, "three agents run")
    actor.kill()
    actor.wait()
    until(lambda: not left_behind(actor.pid), "they have ended")
