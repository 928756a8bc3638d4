"""Starts an engine and uses it to play the attempts of an evaluation. Stores each result as soon as
the attempt ends.

    tasks × attempts ─► those without a result yet ─► play, `at_once` at a time ─► results.jsonl

The same command continues an interrupted evaluation. An attempt that failed because of the
environment or the engine has no reward. The next run of the command plays it again.
"""

import asyncio
import gc
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from learner.evaluation.conversation import conversation
from learner.evaluation.evaluation_folder import EvaluationFolder
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import EngineDead
from r3l.records import GroupPlan, Task
from r3l.rollout.env_interface import Playable
from r3l.rollout.exploration import Exploration
from r3l.rollout.failures import FirstFailures
from r3l.rollout.group import explore_group
from r3l.rollout.policy_interface import ScoringPolicy
from r3l.run.answer_probability import with_exact
from r3l.run.config import RunConfig
from r3l.run.evaluation_tags import attempt_seed
from r3l.run.process.memory import delay_collections


async def play_all(
    tasks: Sequence[Task],
    attempts: int,
    folder: EvaluationFolder,
    policy: ScoringPolicy,
    make_env: Callable[[Task], Playable],
    config: RunConfig,
    *,
    at_once: int,
    temperature: float | None = None,
) -> None:
    """Plays every attempt that has no result yet. Raises EngineDead if the engine dies, but keeps
    the results of the attempts that have ended. `temperature`: None for the evaluation's first
    part. In that part, if `eval.exact` is set, each task's first attempt gets the exact probability
    of the right answers."""
    config = config.for_evaluation(temperature)
    exact = config.eval.exact and temperature is None
    room = asyncio.Semaphore(at_once)
    failures = FirstFailures(say=lambda line: None)  # r3l-eval prints no failures of attempts

    async def play(task: Task, attempt: int) -> None:
        async with room:
            x = Exploration(
                task,
                policy,
                partial(make_env, task),
                GroupPlan(1),
                config.actor.decoding(),
                seed=attempt_seed(config.seed, task.task_id, attempt),
                on_failure=failures,
            )
            (slot,) = await explore_group(partial(Algorithm.explore, config.algorithm), x)
            if exact and attempt == 0:
                budget = config.actor.max_response_tokens
                slot = await with_exact(slot, task, policy, partial(make_env, task), budget)
        folder.add(conversation(task, attempt, slot, several=bool(config.env.others)))

    by_id = {task.task_id: task for task in tasks}
    try:
        async with asyncio.TaskGroup() as group:
            for task_id, attempt in folder.missing(keys_of(tasks, attempts)):
                group.create_task(play(by_id[task_id], attempt))
    except ExceptionGroup as ended:
        raise ended.exceptions[0] from ended


def keys_of(tasks: Sequence[Task], attempts: int) -> list[tuple[str, int]]:
    return [(task.task_id, attempt) for task in tasks for attempt in range(attempts)]


@asynccontextmanager
async def own_engine(config: RunConfig, log: Path) -> AsyncIterator[ScoringPolicy]:
    """Runs an engine for `config.model`. The engine prints to the file `log`. Raises EngineDead if
    the engine does not start."""
    try:
        with output_into(log):
            delay_collections()  # until the engine has started
            from actors.engine import VLLMPolicy

            policy = VLLMPolicy.start(Path(config.model), config.actor, seed=config.seed)
    except EngineDead as error:
        raise EngineDead(f"{_cause(log) or error} (log: {log})") from error
    finally:
        gc.enable()
    try:
        yield policy
    finally:
        with output_into(log):
            policy.close()


def _cause(log: Path) -> str:
    """Returns the last error in the engine's log, or "". vLLM's exception leaves that error out."""
    printed = log.read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"^\w+Error: .+", printed, re.MULTILINE)
    return f"the engine did not start: {found[-1]}" if found else ""


@contextmanager
def output_into(log: Path) -> Iterator[None]:
    """Redirects this process's output to a file. Processes that start inside the context write to
    the file until they end."""
    own = [(fd, os.dup(fd)) for fd in (1, 2)]
    with log.open("ab") as file:
        for fd, _ in own:
            os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        for fd, original in own:
            os.dup2(original, fd)
            os.close(original)
