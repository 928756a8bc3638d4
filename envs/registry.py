"""Makes environments by name. Imports the module of an environment when it is first used.

workshop                 an entry of ENVIRONMENTS
reasoning:chain_sum      a family (an entry of FAMILIES) and the name of its member
path/to/file.py:Class    the user's own class
"""

import inspect
import sys
from collections import Counter
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import structs

from envs.agents.agent_runner import AgentRunner
from envs.base import SeededTasks, Split, TaskSource, TextEnv
from r3l.errors import UserError, did_you_mean
from r3l.records import Task
from r3l.rollout.env_interface import Environment, EnvSpec
from r3l.run.settings.environment import EnvConfig, by_agent
from r3l.settings import user_class

MATHEMATICS = "gsm8k math olympiadbench dapo-math aime24 aime25 amc23".split()
"""The data sets of envs.questions.math_problems."""
ENVIRONMENTS = {
    **dict.fromkeys(MATHEMATICS, "envs.questions.math_problems:MathProblems"),
    "workshop": "envs.builtin.workshop:Workshop",
    "keys": "envs.builtin.keys:Keys",
    "frozen_lake": "envs.builtin.frozen_lake:FrozenLake",
    "sokoban": "envs.builtin.sokoban:Sokoban",
    "alfworld": "envs.adapters.alfworld:AlfWorld",
    "scienceworld": "envs.adapters.scienceworld.scienceworld:ScienceWorld",
    "webshop": "envs.adapters.webshop:WebShop",
    "countdown": "envs.questions.countdown:Countdown",
    "agent": "envs.agents.agent:Agent",
    "countdown-steps": "envs.questions.countdown:CountdownSteps",
}
FAMILIES = {
    "gym": "envs.adapters.gym:Gymnasium",
    "openenv": "envs.adapters.openenv.openenv:OpenEnv",
    "reasoning": "envs.questions.reasoning_gym:Reasoning",
    "textworld": "envs.adapters.textworld:TextWorld",
    "verifiers": "envs.agents.verifiers_taskset:VerifiersTaskset",
}
"""Environments with names `family:member`. The constructor's first argument is the member's name.
(In the environments of MATHEMATICS, that argument is the data set's name.)"""


def make(name: str, **options: Any) -> TextEnv:
    """Makes a new text environment. `options`: keyword arguments of its constructor.

    Raises UserError if a name or option is unknown, the constructor raises, or the result is not a
    text environment.
    """
    if by_agent(name):
        raise UserError(
            f"env {name}: is an agent, which has no reset and step; use python -m "
            "actors.agents.check_agent YAML to check it"
        )
    env = _made(name, options)
    if not isinstance(env, Environment):
        lacks = [each for each in ("spec", "reset", "step", "close") if not hasattr(env, each)]
        raise UserError(
            f"env {name}: lacks {' and '.join(lacks)}; a text environment needs spec, reset, step "
            "and close (see envs.TextEnv and envs.testing.check_env)"
        )
    if not isinstance(env.spec, EnvSpec):
        raise UserError(f"env {name}: its spec is a {type(env.spec).__name__}, not an EnvSpec")
    return env


def make_any(name: str, **options: Any) -> TextEnv | AgentRunner:
    """Makes a new text environment, or a runner if `name` is an agent's. Raises UserError."""
    if not by_agent(name):
        return make(name, **options)
    runner: AgentRunner = _made(name, options)
    return runner


def _made(name: str, options: Mapping[str, Any]) -> Any:
    kind = _load(name, options)
    with user_class.errors_named(f"env {name}: cannot be made, it"):
        return kind(**options)


def all_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with all defaults added, so that equal settings compare equal. Raises
    UserError for an unknown name or option."""
    kind = _load(name, options)
    known = inspect.signature(kind).parameters.values()
    defaults = {p.name: p.default for p in known if p.default is not p.empty}
    return defaults | dict(options)


def try_out(name: str, options: Mapping[str, Any]) -> None:
    """Makes an environment and closes it. Raises UserError if either fails."""
    env = make_any(name, **options)
    with user_class.errors_named(f"env {name}: its close"):
        env.close()


def task_source(name: str, **options: Any) -> TaskSource:
    """Returns the environment's own task source, or else SeededTasks. Raises UserError if the name
    or an option is unknown, or if the class's `task_source` raises."""
    kind = _load(name, options)
    own = getattr(kind.func, "task_source", None)
    if own is None:
        return SeededTasks(name)
    with user_class.errors_named(f"env {name}: its task_source"):
        source: TaskSource = own(*kind.args, **options)
    return source


def tasks(
    name: str, options: Mapping[str, Any], split: Split, count: int, seed: int = 0
) -> list[Task]:
    """Returns at most `count` tasks of a split. Raises UserError for a faulty task source or an
    empty split."""
    if not count:
        return []
    source = task_source(name, **options)
    with user_class.errors_named(f"env {name}: its task source"):
        if not hasattr(source, "tasks"):
            raise UserError(
                f"env {name}: its task_source returned {source!r:.40}; return an envs.ListedTasks"
            )
        drawn = list(source.tasks(split, count, seed))
        if not all(isinstance(task, Task) for task in drawn):
            raise UserError(
                f"env {name}: its task source returned an object that is not an envs.Task"
            )
    if not drawn:
        raise UserError(f"env {name}: its {split} split has no tasks; check env.options")
    return drawn


def tasks_of_all(config: EnvConfig, split: Split, count: int, seed: int = 0) -> list[Task]:
    """Returns at most `count` tasks of a split, an equal share from each environment. With several
    environments, sets each task's `env`. Raises UserError as `tasks` does, and also if two
    environments share a task or if `count` is positive but below the number of environments."""
    kinds = config.each()
    if len(kinds) == 1:
        return tasks(config.name, config.options, split, count, seed)
    if 0 < count < len(kinds):
        raise UserError(
            f"env.others: {count} {split} tasks are too few for {len(kinds)} environments; "
            f"ask for at least {len(kinds)}"
        )
    drawn = list[Task]()
    for place, kind in enumerate(kinds):
        own = tasks(kind.name, kind.options, split, (count + place) // len(kinds), seed)
        drawn += [structs.replace(task, env=kind.name) for task in own]
    if twice := [name for name, n in Counter(task.task_id for task in drawn).items() if n > 1]:
        raise UserError(f"env.others: two environments have the task {twice[0]}; leave one out")
    return drawn


def in_process(name: str) -> bool:
    return bool(getattr(_class(name).func, "in_process", False))


def _load(name: str, options: Mapping[str, Any]) -> partial[Any]:
    """Returns the class called `name`. Raises UserError if the name or an option is unknown."""
    kind = _class(name)
    known = inspect.signature(kind).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    for option in options:
        if option not in known and not takes_any:
            names = ", ".join(known) or "none"
            if is_path(name):
                names += f"; options are parameters of its __init__: add {option} there"
            raise UserError(
                f"env option {name}.{option}: unknown; {name} knows {names}", option=option
            )
        _check_number(f"env option {name}.{option}", options[option], known.get(option))
    return kind


def _check_number(what: str, value: Any, parameter: inspect.Parameter | None) -> None:
    """Raises UserError if `value` is text, and the parameter takes a number, or true or false."""
    if parameter is None or not isinstance(value, str):
        return
    asked = parameter.annotation
    if asked is parameter.empty and parameter.default is not None:
        asked = type(parameter.default)
    asked = getattr(asked, "__name__", asked)  # an annotation may be written as text
    rule = {"bool": "true or false", "int": "a whole number", "float": "a number"}.get(asked)
    if rule is not None:
        raise UserError(f"{what}: must be {rule}, not the text {value!r:.80}")


def _class(name: str) -> partial[Any]:
    """Returns the class `name`. For families and MATHEMATICS, the class's first argument is already
    set. Raises UserError for an unknown name."""
    if is_path(name):
        return partial(_user_class(name))
    family, colon, member = name.partition(":")
    target = FAMILIES.get(family) if colon and member else ENVIRONMENTS.get(name)
    if target is None:
        names = [*sorted(ENVIRONMENTS), *(f"{family}:NAME" for family in sorted(FAMILIES))]
        if name.endswith(".py"):
            raise UserError(f"env {name}: names no class; write {name}:Class", env=name)
        guess = did_you_mean(name, [*ENVIRONMENTS, *FAMILIES])
        raise UserError(
            f"env {name!r}: unknown{guess}; env must be one of {', '.join(names)}, "
            "or path/to/file.py:Class",
            env=name,
        )
    module, _, attribute = target.partition(":")
    kind = getattr(import_module(module), attribute)
    first = name if name in MATHEMATICS else member
    return partial(kind, *([first] if first else []))


def is_path(name: str) -> bool:
    """Whether an environment is a class in a user's file, path/to/file.py:Class."""
    return name.rpartition(":")[0].endswith(".py")


def _user_class(name: str) -> Any:
    """Imports the class `path/to/file.py:Class`. Appends the file's folder to the import path."""
    file, _, attribute = name.rpartition(":")
    path = Path(file).expanduser().resolve()
    if path.is_file() and str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    kind = getattr(user_class.module(f"env {name}", path), attribute, None)
    if not isinstance(kind, type):
        raise UserError(f"env {name}: {path.name} defines no class {attribute!r}")
    return kind
