"""Warns about problems that do not prevent a run from starting."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from envs import registry
from envs.agents.agent_tasks import NAME as AGENT
from envs.agents.agent_tasks import Hidden, unknown_fields
from envs.agents.agent_variables import client_names, secret_names
from envs.agents.task_folders.task_folder import read_task, task_folders
from envs.preflight import FirstStep
from envs.registry import tasks_of_all
from launch.checks.of_model import foreign_world
from launch.topology.machines import visible_gpus
from r3l.records import Task
from r3l.run.config import RunConfig
from r3l.run.settings.actor import ActorConfig
from r3l.run.settings.environment import EnvConfig

MOST_TASKS = 100_000  # of each split that are compared
HIDDEN_IN = 100  # first tasks in which hidden fields are looked for
SHOWN = 20  # most names in a list
CPU, BFLOAT16 = Path("/proc/cpuinfo"), {"avx512f", "avx_ne_convert"}


def notes(
    config: RunConfig,
    first_steps: Mapping[str, FirstStep] = {},
    openings: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yields a line for each warning. `first_steps`, `openings`: the first steps and the first
    observations that are known, keyed by task id. Evaluation tasks are compared with training
    tasks, which can take long, unless `openings` is None."""
    if foreign := foreign_world(config):
        yield foreign
    yield from _context(config)
    yield from _unset(config.env, os.environ)
    yield from _hidden(config.env)
    yield from _unknown_fields(config.env)
    yield from _unsandboxed(config.env)
    yield from _bfloat16(config)
    yield from _second_visits(config)
    yield from _room(config.actor, first_steps)
    yield from _paid_for_nothing(first_steps)
    yield from _few_tasks(config)
    if openings is not None:
        yield from _shared_tasks(config, openings)


def _context(config: RunConfig) -> Iterator[str]:
    settings = json.loads((Path(config.model) / "config.json").read_bytes())
    most, asked = settings.get("max_position_embeddings"), config.actor.max_model_len
    if isinstance(most, int) and most < asked:
        yield f"actor.max_model_len={asked}: the model has a context of {most} tokens"


def _unset(env: EnvConfig, environ: Mapping[str, str]) -> Iterator[str]:
    """Names the variables that environments, agents and graders do not get."""
    if all(registry.in_process(name) for name in env.names):
        return
    names = secret_names(environ, env.pass_environment)
    if env.has_agents:
        names = sorted({*names, *client_names(environ, env.pass_environment)})
    if names:
        yield (
            f"environments and agents do not get {', '.join(names)}; list in "
            "env.pass_environment those that they need"
        )


def _hidden(env: EnvConfig) -> Iterator[str]:
    """Names the fields of tasks that only the grader sees, and the others, unless the user has
    chosen them."""
    for each in env.each():
        options = each.options
        if each.name != AGENT or not options.get("reward") or options.get("hidden") is not None:
            continue
        fields = Hidden(None, graded=True)
        tasks = [t.options.get("task", {}) for t in tasks_of_all(each, "train", HIDDEN_IN)]
        hidden = sorted({name for task in tasks for name in fields.of(task)})
        shown = sorted({name for task in tasks for name in fields.without(task)} - {"id", "split"})
        yield (
            f"env agent: the tasks' {_listed(hidden)} is shown to the grader alone, and "
            f"{_listed(shown)} to the agent too; env.options.hidden=[...] lists the fields that "
            "the agent does not see"
        )


def _unknown_fields(env: EnvConfig) -> Iterator[str]:
    for each in env.each():
        tasks = tasks_of_all(each, "train", HIDDEN_IN) if each.name == AGENT else []
        if note := unknown_fields(str(each.options.get("command", "")), tasks):
            yield note


def _unsandboxed(env: EnvConfig) -> Iterator[str]:
    """Names task folders that are played without their container, and what is then left out."""
    for options in (each.options for each in env.each() if each.name == AGENT):
        if not options.get("unsandboxed"):
            continue
        tasks = [read_task(folder) for folder in task_folders(str(options["tasks"]))]
        runs = [task.folder.name for task in tasks if task.image and task.image.runs]
        left = f"; RUN is not followed in the Dockerfile of {_listed(runs)}" if runs else ""
        yield (
            f"env agent: agent and tests of {len(tasks)} task folders run as your user, without a "
            f"container (env.options.unsandboxed){left}"
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" * (len(names) > SHOWN)
    return ", ".join(f"{name:.60}" for name in names[:SHOWN]) + more or "nothing"


def _bfloat16(config: RunConfig) -> Iterator[str]:
    """Names the settings that choose bfloat16, if this processor can only emulate bfloat16."""
    given = {"actor.dtype": config.actor.dtype, "learner.dtype": config.learner.dtype,
             "learner.compute": config.learner.compute}  # fmt: skip
    asked = [f"{name}=bfloat16" for name, value in given.items() if value == "bfloat16"]
    has = set(CPU.read_text(encoding="utf-8").split())
    if asked and "avx2" in has and not has & BFLOAT16 and not visible_gpus():
        yield f"{', '.join(asked)}: this processor is up to 60 times faster in float32"


def _second_visits(config: RunConfig) -> Iterator[str]:
    """Warns if an algorithm looks back, but no task comes twice."""
    algorithm, learner = config.algorithm, config.learner
    groups = learner.steps * learner.groups_per_step
    if not algorithm.looks_back:
        return
    there = min(config.env.train_tasks, groups)
    if there and len(tasks_of_all(config.env, "train", there, config.seed)) == groups:
        yield (
            f"algorithm={algorithm.name}: {algorithm.looks_back} at the same task, but the run's "
            f"{groups} groups are at {config.env.train_tasks} tasks (env.train_tasks), each of "
            "which comes once; lower it, or raise learner.steps"
        )


def _room(actor: ActorConfig, first_steps: Mapping[str, FirstStep]) -> Iterator[str]:
    """Warns if the longest of the first prompts leaves too little room for a response."""
    for name, step in sorted(first_steps.items(), key=lambda item: -item[1].prompt)[:1]:
        budget = actor.max_response_tokens or step.budget
        if (room := actor.max_model_len - step.prompt) < budget / 2:
            yield (
                f"actor.max_model_len={actor.max_model_len}: the first prompt of task {name} "
                f"leaves {max(room, 0)} of the {budget} tokens that a response may have; raise "
                "max_model_len"
            )


def _paid_for_nothing(first_steps: Mapping[str, FirstStep]) -> Iterator[str]:
    """Warns if an empty response earns something."""
    paid = {name: step.for_nothing for name, step in first_steps.items() if step.for_nothing > 0}
    for name, share in sorted(paid.items())[:1]:
        yield (
            f"task {name}: an empty response earns {share:g} of a full success"
            + (f", and so it is for {len(paid) - 1} of the other tasks tried" * (len(paid) > 1))
            + "; the reward may pay for nothing, so look at how it is computed"
        )


def _few_tasks(config: RunConfig) -> Iterator[str]:
    """Warns if a step has more groups than there are training tasks."""
    asked, env = config.learner.groups_per_step, config.env
    wanted = max(min(asked, env.train_tasks), len(env.names))
    there = len(tasks_of_all(env, "train", wanted, config.seed))
    if there < asked:
        yield (
            f"learner.groups_per_step={asked}: there are {there} training tasks, so each step "
            "repeats tasks; lower it, or give more tasks"
            + (" (env.train_tasks)" if there == env.train_tasks else "")
        )


def _shared_tasks(config: RunConfig, openings: Mapping[str, str]) -> Iterator[str]:
    """Counts the evaluation tasks that pose the same problem as a training task."""
    wanted = min(config.env.train_tasks, MOST_TASKS)
    held_out = tasks_of_all(config.env, "eval", min(config.eval.tasks, MOST_TASKS))
    training = tasks_of_all(config.env, "train", wanted, config.seed)
    # Where most tasks begin alike, as in a game, the first observation does not tell the problem.
    alike = len(set(openings.values())) < len(openings) / 2
    posed = {} if alike else openings
    trained = {_problem(task, posed) for task in training}
    shared = [task for task in held_out if _problem(task, posed) in trained]
    if shared:
        what, if_so = "are the same problem", ""
        if shared[0].task_id in posed:
            what, if_so = "begin with the same text", "if they are the same problem, "
        yield (
            f"{len(shared)} of {len(held_out)} evaluation tasks {what} as a training task, such as "
            f"{shared[0].task_id}: {if_so}success on those says nothing about other tasks"
        )


def _problem(task: Task, openings: Mapping[str, str]) -> str:
    """Returns a key for a task's problem, from the environment and the prompt. If there is no
    prompt, uses the first observation or else the seed and the options."""
    options = {name: value for name, value in task.options.items() if name != "attempts"}
    seeded = (task.seed, sorted(options.items(), key=str))
    posed = options.get("prompt") or openings.get(task.task_id) or seeded
    return repr((task.env, posed))
