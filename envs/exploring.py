"""Explores groups in this process: `r3l.explore` and `r3l.tasks`.

tasks(env, count) ─► explore(algorithm, task, policy, env) ─► a complete Group
"""

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from envs import registry
from envs.base import Split
from r3l.algorithms.algorithm import Algorithm
from r3l.records import Group, GroupPlan, Recalled, Task
from r3l.rollout.env_interface import Environment
from r3l.rollout.exploration import Decoding, Emit, Exploration, OnFailure
from r3l.rollout.failures import FirstFailures
from r3l.rollout.group import explore_group
from r3l.rollout.policy_interface import Policy
from r3l.training.group_memory import Memory

Env = str | Callable[[], Environment]
"""An environment's name or FILE.py:CLASS, or a function that makes one."""

_numbers = itertools.count()
tell_first_failures = FirstFailures(lambda line: print(f"r3l.explore: {line}", file=sys.stderr))


def tasks(
    env: str, count: int, *, split: Split = "train", seed: int = 0, options: Mapping[str, Any] = {}
) -> list[Task]:
    """Returns at most `count` tasks of an environment. Raises UserError for an unknown name, option
    or split."""
    return registry.tasks(env, options, split, count, seed)


async def explore(
    algorithm: Algorithm,
    task: Task,
    policy: Policy,
    env: Env,
    *,
    options: Mapping[str, Any] | None = None,
    plan: GroupPlan | None = None,
    handed: Sequence[Recalled] | None = None,
    decoding: Decoding | None = None,
    seed: int | None = None,
    memory: Memory | None = None,
    emit: Emit | None = None,
    on_failure: OnFailure = tell_first_failures,
) -> Group:
    """Explores one group of a task as `algorithm` does. Makes as many environments as the group
    plays at the same time.

    `options`: options of the environment, if `env` is a name. `plan`: by default the algorithm's
    own. `handed`: the stored attempts of the plan, by default those in `memory`. `seed` makes
    sampling repeatable. `memory`: where stored attempts come from, and where the group is kept.
    `emit`: called with each result and reflection as soon as it exists. `on_failure`: called with
    the error of each attempt that fails; by default it prints the first failure of each cause. The
    slot of such an attempt counts as failed. Raises UserError for an unknown environment,
    EngineDead if the policy can no longer sample.
    """
    make_env: Callable[[], Environment]
    if isinstance(env, str):
        known = registry.all_options(env, options or {})
        make_env = partial(registry.make, env, **known)
    else:
        make_env = env
    memory = memory if memory is not None else Memory()
    group_id = f"local-{next(_numbers):06d}"
    plan = plan or algorithm.plan(memory.facts(task.task_id))
    began = time.time()
    x = Exploration(
        task,
        policy,
        make_env,
        plan,
        decoding or Decoding(),
        seed,
        handed=memory.handed(plan, group_id) if handed is None else handed,
        emit=emit,
        on_failure=on_failure,
    )
    results = await explore_group(algorithm.explore, x)
    group = Group(
        group_id,
        task,
        plan,
        "complete",
        tuple(results),
        tuple(x.reflections.values()),
        times={"leased": began, "complete": time.time()},
    )
    memory.keep(group)
    return group
