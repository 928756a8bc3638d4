"""Plays a task with Harbor's own runner, in an interpreter that has the package `harbor`.

    python harbor_play.py ASKED check    prints an error if the tasks cannot be played

`ASKED` is JSON: the `agent` of Harbor, and `settings` of its trials. envs.agents.call_function
calls `play` for each attempt. The reward is the one that Harbor's verifier has read. It is written
to the file `result`, which the agent's container cannot see.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

try:
    from harbor.agents.factory import AgentFactory
    from harbor.environments.factory import EnvironmentFactory
    from harbor.models.trial.config import AgentConfig, TrialConfig
    from harbor.trial.trial import Trial
except ImportError as error:
    sys.exit(
        f"{sys.executable} cannot import harbor ({error}); pip install harbor there, or set the "
        "option python to another interpreter"
    )

MODEL = "openai/policy"
"""The policy's name for Harbor's agents: a model `policy` of a server of OpenAI's kind."""
WITHOUT_MODEL = ("oracle", "nop")


def trial_config(asked: dict[str, Any]) -> Any:
    """Returns the settings of a trial, whose calls go to the gateway."""
    settings, name = asked["settings"], asked["agent"]
    agent: dict[str, Any] = {"import_path": name} if ":" in name else {"name": name}
    more = settings.get("agent") or {}
    if not isinstance(more, dict) or not isinstance(more.get("env") or {}, dict):
        raise ValueError("the option harbor.agent must hold settings by name, such as kwargs")
    if wrong := sorted({"name", "import_path"} & set(more)):
        raise ValueError(
            f"the option harbor.agent.{wrong[0]}: leave it out; the option command names the agent"
        )
    if name not in WITHOUT_MODEL:
        given = {n: os.environ.get(n, "") for n in ("OPENAI_BASE_URL", "OPENAI_API_KEY")}
        agent |= {"model_name": MODEL, "env": given}
        kind = AgentFactory.get_agent_class_from_config(AgentConfig.model_validate(agent))
        if kind.capabilities.base_url:  # others read the variable
            agent["base_url"] = given["OPENAI_BASE_URL"]
    mine = {
        "task": {"path": asked["folder"]},
        "trials_dir": os.path.abspath("trials"),
        "agent": {**more, **agent, "env": {**(more.get("env") or {}), **agent.get("env", {})}},
        "environment": settings.get("environment", {}),
    }
    return TrialConfig.model_validate({**settings, **mine})


async def play(task: dict[str, Any], asked: dict[str, Any]) -> None:
    """Plays one task. Writes its result for envs.agents.task_folders.run_tests.stored_result."""
    trial = await Trial.create(trial_config(asked))
    done = await trial.run()
    Path(asked["result"]).write_text(json.dumps(result_of(done)), encoding="utf-8")


def result_of(done: Any) -> dict[str, Any]:
    """Returns the rewards of a trial, or the failure that Harbor names."""
    if errors := done.recorded_exceptions():
        said = " ".join(errors[0].exception_message.split())
        return {"failed": f"harbor_{errors[0].exception_type}", "feedback": said[:300]}
    rewards = done.verifier_result.rewards if done.verifier_result else None
    return {"rewards": rewards}


def check(asked: dict[str, Any]) -> None:
    """Raises an error if Harbor cannot play with these settings: an unknown agent, no Docker."""
    environment = trial_config({"folder": ".", **asked}).environment
    EnvironmentFactory.run_preflight(
        type=environment.type,
        import_path=environment.import_path,
        kwargs=environment.kwargs,
    )


def main(asked: str, action: str) -> None:
    try:
        if action == "check":
            check(json.loads(asked))
    except (Exception, SystemExit) as error:
        sys.exit(" ".join(str(error).split())[:300] or type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
