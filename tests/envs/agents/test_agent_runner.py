"""The interface of agents: the same records from a worker process and inside the actor."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from envs import registry
from envs.agents.agent_runner import KEEPER, MAIN, AgentFacts, AgentRunner, ProcessState
from envs.agents.agent_steps import run_process
from envs.isolation.pool import environments
from envs.testing import check_env
from r3l.errors import EnvironmentFailed, UserError
from r3l.rollout.env_calls import guarded
from r3l.rollout.env_interface import Environment
from r3l.run.settings.environment import EnvConfig

SCRIPT = "import os, sys\nprint(os.environ['R3L_TASK'])\nopen('made', 'w').close()\nsys.exit('é')\n"


def options_of(folder: Path, **more: Any) -> dict[str, Any]:
    (folder / "agent.py").write_text(SCRIPT)
    (folder / "tasks.jsonl").write_text('{"id": "a"}\n')
    return {"command": f"python {folder}/agent.py", "tasks": f"{folder}/tasks.jsonl"} | more


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_a_host_answers_in_a_worker_as_it_does_inside_the_actor(
    tmp_path: Path, isolation: Any
) -> None:
    options = options_of(tmp_path, mcp={"tools": "cat"})
    config, kept = EnvConfig(name="agent", options=options, isolation=isolation), tmp_path / "kept"

    async def test() -> None:
        async with environments(config, 1) as make_env:
            runner = make_env()
            assert isinstance(runner, AgentRunner) and not isinstance(runner, Environment)
            assert runner.spec.name == "agent"
            facts = await guarded(lambda: runner.prepare({"id": "a"}, []))
            assert facts == AgentFacts(saved="folder", servers={"tools": ""}, task={"id": "a"})
            state, in_time = await run_process(runner, MAIN, lambda: runner.start({}), 60.0)
            assert in_time and (state.exit, state.stdout, state.stderr) == (1, '{"id": "a"}', "é")
            folder = Path(state.folder)
            assert state.pid and (folder / "work" / "made").exists()
            served = await guarded(lambda: runner.serve("tools"))
            assert served.exit is None and (Path(served.folder) / "stdin").is_fifo()
            save = await run_process(
                runner, KEEPER, lambda: runner.keep("save", str(kept), 3), 60.0
            )
            assert save == (ProcessState(exit=0, stdout=save[0].stdout), True)
            assert json.loads(save[0].stdout)["bytes"] and (kept / "3.json").exists()
            with pytest.raises(EnvironmentFailed, match="KeyError"):
                await guarded(lambda: runner.serve("none"))
            runner.close()
        assert not folder.exists()

    asyncio.run(test())


def test_an_agent_is_no_text_environment(tmp_path: Path) -> None:
    options = options_of(tmp_path)
    for refused in (registry.make, lambda name, **given: check_env(name, options=given)):
        with pytest.raises(UserError, match=r"env agent: is an agent, .* actors\.agents\.check"):
            refused("agent", **options)
    runner = registry.make_any("agent", **options)
    assert isinstance(runner, AgentRunner) and not registry.in_process("agent")
    runner.close()
