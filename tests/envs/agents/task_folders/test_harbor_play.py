"""Task folders played by the real package `harbor`, in an interpreter of its own, without Docker.

`make test-agents` makes that interpreter and runs these tests; without it they are skipped. The
containers are those of local_environment.py. With Docker nothing was tried.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envs.agents.agent import Agent
from envs.agents.task_folders.harbor_tasks import NOTHING, ORACLE, PLAY
from r3l.errors import UserError
from tests.actors.agents.test_agent_attempt import config_of, play
from tests.actors.gateway.test_real_clients import ROOT
from tests.envs.agents.task_folders.folders import TOML, made
from tests.envs.agents.task_folders.test_harbor_tasks import played
from tests.envs.agents.task_folders.test_private_view import pytestmark as needs_views
from tests.r3l.fakes import ScriptedPolicy

PYTHON = os.environ.get("R3L_HARBOR_PYTHON", str(ROOT / "build" / "harbor" / "bin" / "python"))
LOCAL = {"environment": {"import_path": "local_environment:LocalEnvironment"}}

needs_harbor = pytest.mark.skipif(not Path(PYTHON).exists(), reason="make test-agents runs these")


def agent(folder: Path, command: str = ORACLE, **more: Any) -> Agent:
    return Agent(command=command, tasks=str(folder), python=PYTHON, harbor=LOCAL | more)


@needs_views
@needs_harbor
def test_harbors_runner_plays_the_solution_and_nothing(tmp_path: Path) -> None:
    made(tmp_path)
    assert played(agent(tmp_path))[1] == {"reward": 1.0, "parts": {}}
    assert played(agent(tmp_path, NOTHING))[1] == {"reward": 0.0, "parts": {}}


@needs_views
@needs_harbor
@pytest.mark.parametrize(
    ("test", "toml", "cause"),
    [
        ("true\n", TOML, "harbor_RewardFileNotFoundError"),
        ("echo nan > /logs/verifier/reward.txt\n", TOML, "harbor_VerifierOutputParseError"),
        ("echo 3 > /logs/verifier/reward.txt\n", TOML, "tests_bad_reward"),
        ("sleep 60\n", "[verifier]\ntimeout_sec = 1\n", "harbor_VerifierTimeoutError"),
    ],
)
def test_broken_tests_fail_by_harbors_names_and_never_pay(
    tmp_path: Path, test: str, toml: str, cause: str
) -> None:
    made(tmp_path, test=test, toml=toml)
    _, result = played(agent(tmp_path))
    assert result["failed"] == cause and "reward" not in result, result


@needs_views
@needs_harbor
def test_an_agent_of_harbor_calls_the_policy_and_is_paid_by_the_tests(tmp_path: Path) -> None:
    made(tmp_path / "tasks")
    given = {"python": PYTHON, "tasks": str(tmp_path / "tasks")}
    settings = f"env.options.harbor={json.dumps(LOCAL)}"
    more = settings, "env.isolation=none", "actor.agent.timeout_s=300"
    config = config_of(tmp_path, "", *more, command="harbor:host_agent:HostAgent", **given)
    (result,), _ = play(config, ScriptedPolicy(lambda text: "echo 1 > answer"))
    assert result.trajectory is not None, result
    assert result.trajectory.reward == 1.0 and result.trajectory.num_steps == 3


@needs_harbor
@pytest.mark.parametrize(
    ("command", "more", "what"),
    [
        ("harbor:nosuch", {}, "Harbor's runner: Agent name nosuch is not valid"),
        (ORACLE, {"oops": {"type": "x"}, "environment": {"type": "x"}}, "Harbor's runner: .*valid"),
        (ORACLE, {"agent": "x"}, "harbor.agent must hold settings by name"),
        (
            ORACLE,
            {"agent": {"name": "nop"}},
            "harbor.agent.name: leave it out; the option command names",
        ),
    ],
)
def test_what_harbor_does_not_know_is_named(
    tmp_path: Path, command: str, more: dict[str, Any], what: str
) -> None:
    made(tmp_path)
    with pytest.raises(UserError, match=what):
        agent(tmp_path, command, **more)


def test_an_interpreter_without_harbor_is_named(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(UserError, match=r"cannot import harbor .*; pip install harbor there"):
        Agent(command=ORACLE, tasks=str(tmp_path))


def test_a_runner_without_a_name_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(UserError, match=r"command harbor: names no agent; write harbor:NAME"):
        Agent(command="harbor:", tasks=str(tmp_path))


@needs_harbor
def test_settings_of_the_agent_keep_the_gateways_address() -> None:
    more = {"env": {"A": "b", "OPENAI_BASE_URL": "x"}, "kwargs": {"c": 1}, "model_name": "other"}
    asked = {"agent": "terminus-2", "settings": {"agent": more}, "folder": "."}
    code = (
        f"import sys; sys.path.insert(0, {str(PLAY.parent)!r}); import harbor_play as play\n"
        f"agent = play.trial_config({asked!r}).agent\n"
        "print(agent.env['A'], agent.env['OPENAI_BASE_URL'], agent.kwargs['c'], agent.model_name)"
    )
    env = {**os.environ, "OPENAI_BASE_URL": "http://gateway", "LITELLM_LOCAL_MODEL_COST_MAP": "1"}
    done = subprocess.run([PYTHON, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["b", "http://gateway", "1", "openai/policy"], done.stderr
