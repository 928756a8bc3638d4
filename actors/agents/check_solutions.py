"""Checks task folders in Harbor's format: plays each task's own solution, and then nothing at all.

    r3l-agent check agent.yaml --oracle [KEY=VALUE …]

Neither a model nor an agent takes part. The solution should earn 1, an untouched folder 0.
"""

import os
from collections.abc import AsyncIterator

from envs.agents.agent_runner import MAIN, AgentRunner
from envs.agents.agent_steps import Outcome, failed, grade, outcome_of, run_process
from envs.agents.agent_variables import unset_names
from envs.agents.task_folders.harbor_tasks import NOTHING, ORACLE, check_sandbox, is_folder
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l.errors import EpisodeError, UserError
from r3l.records import SUCCESS, Task
from r3l.rollout.env_calls import guarded
from r3l.run.config import RunConfig

MOST_TASKS = 100_000


async def check_solutions(config: RunConfig) -> AsyncIterator[tuple[str, bool]]:
    """Yields a line for each task, and whether its solution and an untouched folder earn what they
    should. Raises UserError if the agent's tasks are not a folder of tasks."""
    options = config.env.options
    folder, command = str(options.get("tasks", "")), str(options.get("command", ORACLE))
    if not is_folder(folder):
        raise UserError("--oracle: needs env.options.tasks=FOLDER, with tasks in Harbor's format")
    check_sandbox(folder, command, bool(options.get("unsandboxed")))
    splits = (tasks_of_all(config.env, split, MOST_TASKS) for split in ("train", "eval"))
    tasks = {task.task_id: task for split in splits for task in split}
    solved = environments_of_all(_commanded(config, ORACLE).env, 1)
    untouched = environments_of_all(_commanded(config, NOTHING).env, 1)
    async with solved as make_solved, untouched as make_untouched:
        for name, task in sorted(tasks.items()):
            said, passed = dict[str, list[str]](), True
            for what, make in (("solution", make_solved), ("untouched", make_untouched)):
                runner = make(task)
                assert isinstance(runner, AgentRunner)
                who, earned, right = await _play_and_judge(what, runner, task, config)
                said.setdefault(earned, []).append(who)
                passed &= right
            words = ", ".join(f"{' and '.join(who)} {earned}" for earned, who in said.items())
            yield f"task {name}: {words}", passed


def _commanded(config: RunConfig, command: str) -> RunConfig:
    options = config.env.options | {"command": command}
    return config.model_copy(update={"env": config.env.model_copy(update={"options": options})})


async def _play_and_judge(
    what: str, runner: AgentRunner, task: Task, config: RunConfig
) -> tuple[str, str, bool]:
    """Plays an attempt. Returns who played and what it earned, in words, and whether that is
    right."""
    who = "its solution" if what == "solution" else "an untouched folder"
    try:
        outcome = await _played(runner, task, config)
    except EpisodeError as error:
        if error.cause == "no_solution":
            return "it", "has no solution", True
        return who, f"failed ({error.cause}): {error}", False
    finally:
        await guarded(runner.close)
    right = outcome.reward == SUCCESS if what == "solution" else outcome.reward == 0
    should = f", but should earn {int(what == 'solution')}"
    return who, f"earns {outcome.reward:g}{should * (not right)}", right


async def _played(runner: AgentRunner, task: Task, config: RunConfig) -> Outcome:
    limit_s = config.actor.agent.timeout_s
    unset = unset_names(os.environ, config.env.pass_environment)
    facts = await guarded(lambda: runner.prepare(task.options["task"], unset))
    limit = min(limit_s, facts.limit_s or limit_s)
    _, in_time = await run_process(runner, MAIN, lambda: runner.start({}, []), limit)
    if not in_time:
        raise failed("agent_timeout", f"it took longer than {limit:g} s and was killed")
    graded = await grade(runner, [], max(limit_s, facts.grader_s or 0))
    return outcome_of(graded, SUCCESS, "terminated")
