"""Plays tasks of a verifiers taskset, in an interpreter that has the package `verifiers`.

    python verifiers_play.py CONFIG check    prints an error if the taskset cannot be played
    python verifiers_play.py CONFIG list     prints the tasks as JSON, one a line

`CONFIG` is verifiers' own environment config as JSON; its `taskset.id` names the taskset.
envs.agents.call_function calls `play` for each attempt.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from dataclasses import replace
from functools import partial
from typing import Any, TextIO

try:
    import verifiers.v1 as vf
except ImportError as error:
    sys.exit(
        f"{sys.executable} cannot import verifiers ({error}); pip install verifiers uv there, or "
        "set the option python to another interpreter"
    )


MODEL, UNTRAINED = "policy", "policy-untrained"
"""The policy's names at the gateway: MODEL for trained calls, UNTRAINED for other calls."""


def environment(config: dict[str, Any]) -> Any:
    """Makes the verifiers environment of a config. By default, agents run in local processes. An
    agent without a harness gets the taskset's harness, or `null` if that is `bash`."""
    taskset = config["taskset"]["id"]
    seats = vf.env_config_type(taskset, config.get("id", "")).model_fields.items()
    own = vf.default_harness_id(taskset)
    for name, field in seats:
        if isinstance(field.default, vf.AgentConfig):
            seat = {"runtime": {"type": "subprocess"}}
            if field.default.harness is None:
                seat["harness"] = {"id": "null" if own == "bash" else own}  # null: no tools
            config[name] = seat | config.get(name, {})
    env = vf.load_environment(vf.resolve_env_config(config))
    env.setup = partial(_set_up, env.setup, [name for name, _ in seats])
    return env


async def _set_up(own: Any, seats: list[str], agents: Any) -> None:
    """Gives untrained agents, such as a judge, the model name UNTRAINED."""
    await own(agents)
    for name in seats:
        seat = getattr(agents, name, None)
        if seat is not None and not seat.trainable and seat.ctx.model == MODEL:
            seat.ctx = replace(seat.ctx, model=UNTRAINED)


async def play(task: dict[str, Any]) -> dict[str, Any]:
    """Plays one task, with the gateway as the model's server. Returns the reward and its parts."""
    env, index = environment(task["config"]), task["index"]
    (mine,) = itertools.islice(env.taskset, index, index + 1)
    if mine.key != task["key"]:
        sys.exit(f"task {index} has changed since the tasks were listed")
    client = vf.EvalClientConfig(
        base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY"
    )
    async with env.serving():
        episode = await env.run_episode(mine, vf.ModelContext(model=MODEL, client=client))
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors and not episode.ok:
        sys.exit(f"{errors[0].type}: {' '.join(errors[0].message.split())}")
    return result([trace for trace in episode.traces if trace.agent.trainable])


def result(traces: list[Any]) -> dict[str, Any]:
    """Returns the mean reward of the trained agents, and the first agent's rewards and metrics."""
    rewards = {name: each.value for name, each in traces[0].rewards.items() if each is not None}
    reward = sum(trace.reward for trace in traces) / len(traces)
    return {"reward": reward, "parts": traces[0].metrics | rewards}


def listed(taskset: Any, lines: TextIO) -> None:
    if not taskset.bounded:
        sys.exit("this taskset is endless; limit it with one of its own options")
    for index, task in enumerate(taskset):
        print(json.dumps({"index": index, "key": task.key}), file=lines)
    lines.flush()


def main(config: str, action: str) -> None:
    """Checks a taskset, or lists its tasks. The taskset's own output goes to standard error."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        env = environment(json.loads(config))
        if action == "list":
            listed(env.taskset, lines)
    except Exception as error:
        sys.exit(" ".join(str(error).split())[:300] or type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
