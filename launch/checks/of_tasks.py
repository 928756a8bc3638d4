"""Checks some tasks of every environment by taking their first step."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from envs.openings import openings
from envs.preflight import FirstStep, try_tasks
from envs.registry import tasks_of_all
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.shared.re_reading import ReReading
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.algorithms.shared.stored_starts import StartsInside
from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout.chat import ChatFormat
from r3l.rollout.reflection import SHORTEST
from r3l.run.answer_probability import without_answers
from r3l.run.config import RunConfig
from r3l.run.settings.actor import ActorConfig

LONGEST_OF = 1000


def first_tasks(config: RunConfig) -> list[Task]:
    """Returns each environment's first training task and, if the run evaluates, its first
    evaluation task."""
    env, each = config.env, len(config.env.names)
    trained = tasks_of_all(env, "train", min(each, env.train_tasks), config.seed)
    return [*trained, *_first_evaluated(config)]


def _first_evaluated(config: RunConfig) -> list[Task]:
    return tasks_of_all(config.env, "eval", min(len(config.env.names), config.eval.tasks))


def try_first_steps(
    config: RunConfig, tasks: Sequence[Task], chat: ChatFormat
) -> dict[str, FirstStep]:
    """Takes the first step of each task. Also tries one more task of each split: the one with the
    longest options. Returns the steps, keyed by task id. Raises UserError if a step fails."""
    trained = min(LONGEST_OF, config.env.train_tasks)
    tried = [*tasks]
    for many in (
        tasks_of_all(config.env, "train", trained, config.seed),
        tasks_of_all(config.env, "eval", min(LONGEST_OF, config.eval.tasks)),
    ):
        longest = max(many, key=lambda task: len(repr(task.options)), default=None)
        if longest is not None and longest not in tried:
            tried.append(longest)
    steps = try_tasks(config.env, tried, chat) if tried else []
    return {task.task_id: step for task, step in zip(tried, steps, strict=True)}


def listed_openings(config: RunConfig) -> dict[str, str]:
    """Resets each environment to every task that it lists. Returns the first observations, keyed
    by task id. Raises UserError if a reset fails."""
    seen = dict[str, str]()
    for each in config.env.each():
        seen |= openings(each.name, each.options)
    return seen


def check_first_steps(
    config: RunConfig, chat: ChatFormat, tasks: Sequence[Task], steps: Mapping[str, FirstStep]
) -> None:
    """Refuses overlong first prompts, and limits that leave no room for a reflection or for reading
    an attempt again. Refuses an algorithm that retries or starts inside stored attempts if an
    environment does not allow that. Refuses `eval.exact` if an environment lists no answers."""
    lengths = [steps[task.task_id].prompt for task in tasks]
    check_first_prompts(Path(config.model), config.actor.max_model_len, tasks, lengths)
    if asks_for_reflections(config.algorithm):
        check_reflections(config.actor, chat, [*steps.values()])
    if isinstance(config.algorithm, ReReading):
        check_readings(config.algorithm, tasks, steps)
    if makes_retries(config.algorithm):
        check_retries(config.algorithm.name, tasks, steps)
    if isinstance(config.algorithm, StartsInside):
        check_starts(config.algorithm.name, tasks, steps)
    for task in _first_evaluated(config) if config.eval.exact else ():
        if not steps[task.task_id].answers:
            raise without_answers(task)


def asks_for_reflections(algorithm: Algorithm) -> bool:
    """Whether an algorithm asks for reflections in JSON (r3l.rollout.reflection)."""
    if not isinstance(algorithm, ReflectAndRetry) or not getattr(algorithm, "reflect", True):
        return False
    return type(algorithm).read is ReflectAndRetry.read


def makes_retries(algorithm: Algorithm) -> bool:
    """Whether an algorithm retries attempts of its own group."""
    retries = isinstance(algorithm, ReflectAndRetry) and not isinstance(algorithm, ReReading)
    return retries and bool(getattr(algorithm, "reflect", True))


def check_retries(algorithm: str, tasks: Sequence[Task], steps: Mapping[str, FirstStep]) -> None:
    """Refuses environments in which no attempt can go back to an earlier step."""
    for task in tasks:
        if not steps[task.task_id].reentered:
            raise UserError(
                f"algorithm={algorithm}: retries attempts from an earlier step, but env {task.env} "
                'declares deterministic="no" and has no snapshot and restore, so every retry would '
                "fail as not_replayable; write these two methods, or choose an algorithm without "
                "retries, such as grpo"
            )


def check_starts(algorithm: str, tasks: Sequence[Task], steps: Mapping[str, FirstStep]) -> None:
    """Refuses environments whose attempts cannot be replayed, or always have only one step."""
    for task in tasks:
        if not steps[task.task_id].replayable:
            raise UserError(
                f"algorithm={algorithm}: replays the first steps of stored attempts, but env "
                f'{task.env} declares deterministic="no"; choose another algorithm'
            )
    if all(steps[task.task_id].most_steps == 1 for task in tasks):
        raise UserError(
            f"algorithm={algorithm}: starts at later steps of stored attempts, but attempts of "
            f"env {tasks[0].env} have one step; choose another algorithm, or an option that "
            "gives attempts several steps, such as env.options.step=paragraph"
        )


def check_readings(
    algorithm: ReReading, tasks: Sequence[Task], steps: Mapping[str, FirstStep]
) -> None:
    """Refuses a limit on re-read attempts if it is so low that even the shortest first prompt
    reaches it."""
    shortest = min(steps[task.task_id].prompt for task in tasks)
    if shortest >= algorithm.reading_limit:
        raise UserError(
            f"algorithm.reading_limit={algorithm.reading_limit}: the shortest first prompt has "
            f"{shortest} tokens, so no attempt could be read again with its advice; raise "
            "reading_limit"
        )


def check_reflections(actor: ActorConfig, chat: ChatFormat, steps: Sequence[FirstStep]) -> None:
    """Refuses a budget or a context that is too small for the shortest reflection on one step."""
    shortest = len(chat.tokenizer.encode(SHORTEST, add_special_tokens=False)) + 1
    if actor.max_reflection_tokens < shortest:
        raise UserError(
            f"actor.max_reflection_tokens={actor.max_reflection_tokens}: the shortest reflection "
            f"has {shortest} tokens; raise the limit, for example to 500"
        )
    asked = min(step.reflection_prompt for step in steps)
    if asked + shortest > actor.max_model_len:
        raise UserError(
            f"actor.max_model_len={actor.max_model_len}: the prompt for a reflection on one step "
            f"has {asked} tokens, which leaves no room for a reflection; raise max_model_len"
        )


def check_first_prompts(
    model: Path, max_model_len: int, tasks: Sequence[Task], lengths: Sequence[int]
) -> None:
    """Refuses a first prompt that fills the context. `lengths`: each task's prompt, in tokens."""
    settings = json.loads((model / "config.json").read_bytes())
    most = settings.get("max_position_embeddings") or max_model_len
    for task, length in zip(tasks, lengths, strict=True):
        if length >= max_model_len:
            raise UserError(
                f"actor.max_model_len={max_model_len}: the first prompt of task {task.task_id} has "
                f"{length} tokens, which leaves no room for a response; raise max_model_len"
            )
        if length >= most:
            raise UserError(
                f"model {model}: its context has {most} tokens, but the first prompt of task "
                f"{task.task_id} has {length}; choose a model with a longer context"
            )
