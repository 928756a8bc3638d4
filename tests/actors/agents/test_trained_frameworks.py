"""Agents of five frameworks are trained for three steps, two of them with retries.

`make test-agents` makes their interpreters and runs these tests; without them they are skipped.
"""

import json
from pathlib import Path

import pytest

from tests.actors.gateway.test_real_clients import EXAMPLES, OLDER, PYTHON
from tests.system.test_run import launch, scalars

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1200)]
STEPS = 3


@pytest.mark.parametrize(
    ("framework", "python", "algorithm"),
    [
        ("agno", PYTHON, "r3l"),
        ("autogen", PYTHON, "r3l"),
        ("crewai", OLDER, "grpo"),
        ("dspy", PYTHON, "grpo"),
        ("strands", OLDER, "grpo"),
    ],
    ids=lambda value: "" if isinstance(value, Path) else value,
)
def test_an_agent_of_a_framework_is_trained_and_its_retries_reach_their_step(
    framework: str, python: Path, algorithm: str, tmp_path: Path
) -> None:
    if not python.exists():
        pytest.skip("make test-agents runs these")
    settings = EXAMPLES / ("workshop_r3l.yaml" if algorithm == "r3l" else "workshop.yaml")
    process = launch(
        tmp_path / "run",
        *("--config", str(settings), "--steps", str(STEPS)),
        f"env.options.command={EXAMPLES}/workshop_{framework}.py:play",
        f"env.options.python={python}",
        "env.memory_mib=4096",
        "actor.max_response_tokens=16",
        "learner.groups_per_step=2",
    )
    said, _ = process.communicate(timeout=1100)
    assert process.returncode == 0, said[-4000:]
    progress = (tmp_path / "run" / "progress.jsonl").read_text().splitlines()
    assert json.loads(progress[-1])["step"] == STEPS
    counted = {tag: values[-1] for tag, values in scalars(tmp_path / "run").items()}
    print(framework, {tag: value for tag, value in counted.items() if tag.startswith("agent/")})
    assert counted["agent/calls"] >= counted["agent/attempts"] > 0
    if algorithm == "r3l":
        assert counted["agent/taped"] > 0 and not counted.get("agent/diverged")
