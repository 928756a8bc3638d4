"""Steps per second and memory of environments, by the number of processes they share.

    python -m benchmarks.environments --env scienceworld --attempts 8 --seconds 20

Every attempt plays the same few commands through `envs.isolation.pool`, as an actor's would, but
without a policy's pause between two steps: the rates are upper limits.
"""

import asyncio
import time
from typing import Any

import click
import psutil

from envs.isolation.pool import EnvPool, RemoteEnv
from envs.registry import task_source
from r3l.records import Task
from r3l.run.settings.environment import EnvConfig

COMMANDS = {
    "scienceworld": ("look around", "go to kitchen", "inventory", "open cupboard", "go to hallway"),
    "alfworld": ("go to cabinet 1", "open cabinet 1", "look", "go to shelf 1", "inventory"),
}


@click.command()
@click.option("--env", "name", default="scienceworld", show_default=True)
@click.option("--attempts", default=8, show_default=True, help="attempts at a time")
@click.option("--seconds", default=20.0, show_default=True, help="playing time per line")
@click.option("--workers", default="1,2,8", show_default=True, help="processes they share")
@click.argument("options", nargs=-1, metavar="[KEY=VALUE]...")
def main(name: str, attempts: int, seconds: float, workers: str, options: tuple[str, ...]) -> None:
    """Print one row per number of worker processes."""
    given = dict(option.split("=", 1) for option in options)
    click.echo(
        "| processes | attempts | ready, s | resets/s | steps/s | CPU ms/step | memory, MiB |"
    )
    click.echo("|---|---|---|---|---|---|---|")
    for count in map(int, workers.split(",")):
        config = EnvConfig(name=name, options=given, workers=count, step_s=600, isolation="process")
        click.echo(asyncio.run(_row(config, attempts, seconds)))


async def _row(config: EnvConfig, attempts: int, seconds: float) -> str:
    tasks = task_source(config.name, **config.options).tasks("train", attempts)
    pool = EnvPool(config)
    began = time.monotonic()
    await pool.start()
    envs = [RemoteEnv(pool) for _ in range(attempts)]
    await asyncio.gather(*(_reset(e, t) for e, t in zip(envs, tasks, strict=True)))
    ready = time.monotonic() - began
    until, cpu_before = time.monotonic() + seconds, _cpu_seconds()
    played = await asyncio.gather(*(_play(e, t, until) for e, t in zip(envs, tasks, strict=True)))
    took = time.monotonic() - until + seconds
    cpu_s, memory = _cpu_seconds() - cpu_before, _memory()
    for env in envs:
        env.close()
    await pool.close()
    steps, resets = (sum(counts) for counts in zip(*played, strict=True))
    return (
        f"| {config.workers} | {attempts} | {ready:.1f} | {resets / took:.1f} | {steps / took:.0f} "
        f"| {1000 * cpu_s / steps:.0f} | {memory:.0f} |"
    )


async def _reset(env: Any, task: Task) -> None:
    await env.reset(seed=task.seed, options=dict(task.options))


async def _play(env: Any, task: Task, until: float) -> tuple[int, int]:
    """(steps, resets) until the time is over; an attempt is reset after 20 steps."""
    commands, steps, resets = COMMANDS.get(env.spec.name, ("look",)), 0, 0
    while time.monotonic() < until:
        if steps % 20 == 19:
            await _reset(env, task)
            resets += 1
        _, _, terminated, truncated, _ = await env.step(commands[steps % len(commands)])
        steps += 1
        if terminated or truncated:
            await _reset(env, task)
            resets += 1
    return steps, resets


def _cpu_seconds() -> float:
    """CPU time of the worker processes and what they started: it does not depend on the load."""
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return float(sum(t.user + t.system for t in times))


def _memory() -> float:
    """MiB that only the worker processes and what they started hold."""
    children = psutil.Process().children(recursive=True)
    return float(sum(child.memory_full_info().uss for child in children)) / 2**20


if __name__ == "__main__":
    main()
