"""Before a run, resets the environment to some tasks and takes one step in each. If the environment
is an agent, only prepares the tasks. Uses the same kind of process and the same limits as the
run."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from envs.agents.agent_runner import AgentRunner
from envs.isolation.pool import environments_of_all
from r3l.errors import EpisodeError, UserError
from r3l.records import Task
from r3l.rollout.attempt import start
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_calls import guarded, read_step
from r3l.rollout.env_interface import Environment, EnvSpec, canonical
from r3l.rollout.policy_interface import Sample
from r3l.rollout.prompts import Prompts
from r3l.run.answer_probability import listed_answers
from r3l.run.settings.environment import EnvConfig

NONSENSE = "try"
"""The action of each step. An environment must answer any action, even one without meaning."""

FEW_STEPS = 3
"""The most steps of an attempt at a question, which may be answered several times."""


@dataclass(frozen=True)
class FirstStep:
    """The sizes of a task's first step, in tokens. `prompt`: the first prompt; 0 for an agent,
    since only the agent knows its prompts. `budget`: limit for the response. `reflection_prompt`:
    the prompt for a reflection on the step; for an agent, the prompt without a step. `answers`: how
    many right answers the environment lists.

    `for_nothing`: what an attempt earns, as a share of a full success, if an empty response ends
    it; 0 if that was not tried. `replayable`: whether the steps of a stored attempt can be played
    again. `reentered`: whether an attempt can go back to an earlier step, by a snapshot or by
    replay. `most_steps`: the most steps of an attempt; 0 for an agent, since only the agent
    knows."""

    prompt: int
    budget: int
    reflection_prompt: int
    answers: int = 0
    replayable: bool = True
    reentered: bool = True
    most_steps: int = 0
    for_nothing: float = 0.0


def try_tasks(config: EnvConfig, tasks: Sequence[Task], chat: ChatFormat) -> list[FirstStep]:
    """Takes the first step of each task. If a call fails, raises a UserError that names the task,
    the call and the user's line of code."""
    with ThreadPoolExecutor(1) as thread:  # a notebook's own thread already runs a loop
        return thread.submit(asyncio.run, _try_all(config, tasks, chat)).result()


async def _try_all(config: EnvConfig, tasks: Sequence[Task], chat: ChatFormat) -> list[FirstStep]:
    async with environments_of_all(config, wanted=1) as make_env:
        return [await _try(make_env, task, chat) for task in tasks]


async def _try(
    make_env: Callable[[Task], Environment | AgentRunner], task: Task, chat: ChatFormat
) -> FirstStep:
    name, call = task.env, "reset"
    try:
        env: Environment | AgentRunner = await guarded(lambda: make_env(task))
        try:
            if isinstance(env, AgentRunner):
                call, runner, given = "prepare", env, task.options.get("task", {})
                await guarded(lambda: runner.prepare(given, []))
                return _of_agent(runner.spec, chat)
            attempt = await start(task, chat, env)
            again = await start(task, chat, env)
            _check_same(task, env, attempt.observations[0], again.observations[0])
            call, answers = "right_answers", await listed_answers(env)
            call = f"step({NONSENSE!r})"
            reaction, *_ = read_step(name, await guarded(lambda: env.step(NONSENSE)))
            paid = await _paid_for_nothing(task, chat, env)
        finally:
            await guarded(env.close)
    except EpisodeError as error:
        raise UserError(f"env {name}: {call} of task {task.task_id}: {error}") from error
    prompt = len(attempt.read) + len(chat.prompt_ids)
    attempt.tokens.add_response(Sample((chat.end_id,), (0.0,), 0, 0, "stop"))
    attempt.seconds, attempt.rewards = [0.0], [0.0]
    attempt.actions, attempt.observations = [NONSENSE], [attempt.observations[0], reaction]
    asked = Prompts(env.spec.prompts).question("reflect", attempt.trajectory(0))
    replayable = env.spec.deterministic != "no"
    return FirstStep(
        prompt,
        env.spec.max_response_tokens,
        len(chat.open(*asked)) + len(chat.prompt_ids),
        answers=len(answers),
        replayable=replayable,
        reentered=replayable or (hasattr(env, "snapshot") and hasattr(env, "restore")),
        most_steps=env.spec.max_steps,
        for_nothing=paid,
    )


async def _paid_for_nothing(task: Task, chat: ChatFormat, env: Environment) -> float:
    """Answers a question with an empty response. Returns the reward if that ends the attempt. Does
    not try longer worlds, where any step may well earn something."""
    if env.spec.max_steps > FEW_STEPS:
        return 0.0
    try:
        await start(task, chat, env)
        reply = read_step(task.env, await guarded(lambda: env.step("")))
    except EpisodeError:
        return 0.0  # it pays nothing
    _, reward, terminated, truncated, _ = reply
    return reward / env.spec.success_threshold if terminated or truncated else 0.0


def _of_agent(spec: EnvSpec, chat: ChatFormat) -> FirstStep:
    texts = Prompts(spec.prompts).texts
    asked = chat.open(texts["reflect_system"], texts["reflect_user"])
    return FirstStep(0, spec.max_response_tokens, len(asked) + len(chat.prompt_ids))


def _check_same(task: Task, env: Environment, first: str, second: str) -> None:
    """Raises UserError if two resets differ, unless the environment declares deterministic="no"."""
    kind = env.spec.deterministic
    if kind == "canonical":
        first, second = canonical(first), canonical(second)
    if kind != "no" and first != second:
        raise UserError(
            f"env {task.env}: two resets to task {task.task_id} show different texts; let `reset` "
            'depend on its seed alone, or declare deterministic="no" in the EnvSpec'
        )
