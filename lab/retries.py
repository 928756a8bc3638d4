"""Retries of agents from the tape: how many reach their step, and what they cost.

    python -m lab.retries reached workshop                 the built-in policy, real engine
    python -m lab.retries reached shell                    made-up commands in a folder
    python -m lab.retries reached verifiers:NAME --python ~/vf/bin/python
    python -m lab.retries refused                          folders that changed in between
    python -m lab.retries saved --model smollm2            against restarts, in turn

`shell` and `verifiers:NAME` replace the policy by random commands and tool calls, because what is
measured is whether an agent's tools, run once more, lead to the recorded requests.
"""

import asyncio
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import psutil

from actors.agents.agent_attempt import AgentEnvironment, agents_served
from actors.engine import VLLMPolicy
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from lab.dry_run import DRY_RUN
from launch.checks.presets import DEMO
from r3l.errors import EpisodeError
from r3l.models.model_folder import read_tokenizer
from r3l.models.model_path import model_path
from r3l.records import Task, Trajectory
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_calls import guarded
from r3l.rollout.env_interface import Playable, Retry
from r3l.rollout.policy_interface import Policy, Sample, SampleParams
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.process.command_line import OneLineGroup
from r3l.views.tape import without

T = TypeVar("T")
MakeEnv = Callable[[Task], Playable]
EXAMPLES = Path("examples/agents")
GUIDANCE = "advice: remember tin needs brush."
COMMANDS = (
    "cat *.txt",
    "ls",
    "ls -l",
    "find . -type f",
    "wc -c *",
    "md5sum *.txt",
    "sort *.txt | uniq -c",
    "grep -rn {n} .",
    "echo {n} >> log.txt; tail -n 3 log.txt",
    "mkdir -p d{n}; cp a.txt d{n}; ls d{n}",
    "sed -i s/{n}/x/ b.txt; cat b.txt",
    "rm -f d{n}/a.txt; ls d{n}",
    "python3 -c 'print(sum(range({n})))'",
    "pwd; cat missing{n}",
)
DATES = r"[A-Z][a-z]{2} +\d+ \d\d:\d\d"
"""The times that `ls -l` shows."""


class MadeUp:
    """A policy without a model: random replies of an environment."""

    def __init__(self, env: str, seed: int) -> None:
        folder = model_path("smollm2")
        self.chat, self.context_length = ChatFormat(read_tokenizer(folder, "smollm2")), 1 << 20
        self.random, self.reply = random.Random(seed), command if env == "shell" else tool_call

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Samples a reply, whatever the policy has read."""
        text = self.reply(self.random, self.chat.tokenizer.decode(token_ids))
        ids = (*self.chat.encode(text), self.chat.end_id)
        return Sample(ids, (0.0,) * len(ids), 0, 0, "stop")


def command(chance: random.Random, read: str) -> str:
    return chance.choice(COMMANDS).format(n=chance.randrange(1, 9))


def tool_call(chance: random.Random, read: str) -> str:
    """Calls a tool at least once."""
    if "<tool_response>" in read and chance.random() < 0.25:
        return "It is 156."
    arguments = {"a": chance.randrange(999), "b": chance.randrange(999)}
    return f"<tool_call>\n{json.dumps({'name': 'multiply', 'arguments': arguments})}\n</tool_call>"


def settings(env: str, folder: Path, *more: str, python: str = "") -> RunConfig:
    """Returns the settings of a run whose retries never restart."""
    options: dict[str, Any] = {"python": python} if python else {}
    if env == "shell":
        tasks, world = folder / "tasks.jsonl", folder / "world"
        tasks.write_text("".join(f'{{"id": {n}, "goal": "work", "turns": 6}}\n' for n in range(9)))
        write_world(world)
        (folder / "grade.py").write_text("def grade(task, calls, workspace): return 0.0\n")
        options |= {"command": f"{EXAMPLES}/shell_agent.py:work", "tasks": str(tasks),
                    "workspace": str(world), "reward": f"{folder}/grade.py:grade"}  # fmt: skip
    elif env == "workshop":
        options |= {"command": f"{EXAMPLES}/workshop_agent.py:play",
                    "tasks": f"{EXAMPLES}/workshop.jsonl"}  # fmt: skip
    name = env if ":" in env else "agent"
    values = [f"env={name}", f"env.options={json.dumps(options)}", "env.memory_mib=4096",
              "actor.agent.max_divergences=1000000", *more]  # fmt: skip
    return configuration.load(DEMO, values)


def write_world(world: Path) -> None:
    """Writes the files that the shell agent finds; always the same."""
    shutil.rmtree(world, ignore_errors=True)
    world.mkdir()
    for number, name in enumerate("abcdef"):
        lines = [f"{name} {line * (number + 3) % 17}\n" for line in range(9)]
        (world / f"{name}.txt").write_text("".join(lines))
    set_times(world)


def set_times(world: Path) -> None:
    """Gives all files the same time, so that none is told by it."""
    for file in world.iterdir():
        os.utime(file, (0, 0))


def change_world(world: Path, chance: random.Random) -> str:
    """Changes one thing in the folder; returns what."""
    one, other = (world / f"{name}.txt" for name in chance.sample("abcdef", 2))
    text, how = one.read_text(), chance.choice(["letter", "clock", "order", "gone", "new", "names"])
    at = chance.randrange(len(text) - 1)
    match how:
        case "letter":
            one.write_text(text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :])
        case "clock":
            one.write_text(f"{text}{time.time_ns()}\n")
        case "order":
            one.write_text("".join(reversed(text.splitlines(keepends=True))))
        case "gone":
            one.unlink()
        case "new":
            (world / f"{chance.randrange(1 << 20)}.txt").write_text(text)
        case "names":
            other.rename(world / "x")
            one.rename(other)
            (world / "x").rename(one)
    set_times(world)
    return how


async def played(
    make_env: MakeEnv, task: Task, retry: Retry | None = None, tokens: int = 64
) -> Trajectory | EpisodeError:
    """Plays an attempt, or a retry. Returns its record, or why there is none."""
    env = make_env(task)
    assert isinstance(env, AgentEnvironment)
    try:
        slot = 0 if retry is None else 1
        return await env.play_with_agent(task, slot, lambda step: SampleParams(tokens, 1.0), retry)
    except EpisodeError as error:
        return error
    finally:
        await guarded(env.close)


async def few_at_once(calls: Iterable[Awaitable[T]], at_once: int) -> list[T]:
    """Awaits all of them, `at_once` at the same time."""
    places = asyncio.Semaphore(at_once)

    async def one(call: Awaitable[T]) -> T:
        async with places:
            return await call

    return await asyncio.gather(*map(one, calls))


def same_until(base: Trajectory, made: Trajectory, pivot: int, ignore: Sequence[str] = ()) -> bool:
    """Whether the agent saw the same before a step, as its records say: no digest is asked."""
    one, other = (
        [without(text, ignore) for text in each.observations[: pivot + 1]] for each in (base, made)
    )
    return one == other and made.actions[:pivot] == base.actions[:pivot]


@asynccontextmanager
async def served(config: RunConfig, policy: Policy, at_once: int) -> AsyncIterator[MakeEnv]:
    """Yields what makes the environments of agents that call `policy`."""
    async with (
        environments_of_all(config.env, at_once) as made,
        agents_served(made, config, policy) as make_env,
    ):
        yield make_env


async def reached(config: RunConfig, policy: Policy, retries: int, at_once: int) -> Counter[str]:
    """Retries attempts from each step but the first. Counts the retries that reached their step,
    that diverged, and that failed otherwise."""
    found, ignore = Counter[str](), config.actor.agent.ignore
    tasks, chance = tasks_of_all(config.env, "train", retries), random.Random(0)

    async def tried(make_env: MakeEnv, task: Task, base: Trajectory, pivot: int) -> None:
        made = await played(make_env, task, Retry(base, pivot, GUIDANCE, of=0))
        if isinstance(made, EpisodeError):
            found[made.cause] += 1
            print(f"step {pivot}: {made}", flush=True)
        else:
            same = same_until(base, made, pivot, ignore)
            found["reached" if same else "wrong"] += 1

    async with served(config, policy, at_once) as make_env:
        while found.total() < retries:
            some = [tasks[number % len(tasks)] for number in range(at_once)]
            chance.shuffle(some)
            bases = await few_at_once((played(make_env, task) for task in some), at_once)
            pairs = [*zip(some, bases, strict=True)]
            whole = [(task, base) for task, base in pairs if isinstance(base, Trajectory)]
            found["base failed"] += len(pairs) - len(whole)
            steps = [(t, base, k) for t, base in whole for k in range(1, base.num_steps)]
            await few_at_once((tried(make_env, *each) for each in steps), at_once)
            print(dict(found), flush=True)
    return found


async def refused(config: RunConfig, policy: Policy, worlds: int, seed: int) -> Counter[str]:
    """Retries attempts in a folder that changed, until so many changes were seen before the step.
    Counts how many were refused, how many were accepted, and what was not seen."""
    found, chance = Counter[str](), random.Random(seed)
    world, tasks = Path(config.env.options["workspace"]), tasks_of_all(config.env, "train", 8)
    async with served(config, policy, 1) as make_env:
        while found["refused"] + found["accepted"] < worlds:
            write_world(world)
            task = chance.choice(tasks)
            base = await played(make_env, task)
            assert isinstance(base, Trajectory), base
            for _ in range(5):
                write_world(world)
                how, pivot = change_world(world, chance), chance.randrange(1, base.num_steps)
                made = await played(make_env, task, Retry(base, pivot, GUIDANCE, of=0))
                if isinstance(made, Trajectory):
                    unseen = same_until(base, made, pivot)
                    found["not seen" if unseen else "accepted"] += 1
                else:
                    found["refused" if made.cause == "replay_diverged" else made.cause] += 1
                    found[f"refused: {how}"] += 1
            print(dict(found), flush=True)
    return found


def cpu_seconds() -> float:
    """Of this process and its descendants so far, also those that have ended."""
    own = psutil.Process()
    used = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(t.user + t.system + t.children_user + t.children_system for t in used)


WAYS = ("tape", "restart")


async def saved(
    config: RunConfig, restarting: RunConfig, bases: int, rounds: int, at_once: int, tokens: int
) -> None:
    """Retries the same attempts from each step by the tape and by a restart, in turn, with an empty
    prefix cache. Prints a table of what one retry takes after each round."""
    policy = VLLMPolicy.start(model_path(config.model), config.actor)
    spent: defaultdict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    tasks = tasks_of_all(config.env, "train", bases)
    async with (
        served(config, policy, at_once) as tape,
        served(restarting, policy, at_once) as restart,
    ):
        makes = dict(zip(WAYS, (tape, restart), strict=True))
        made = await few_at_once((played(tape, task, None, tokens) for task in tasks), at_once)
        whole = [(t, b) for t, b in zip(tasks, made, strict=True) if isinstance(b, Trajectory)]
        for number in range(rounds):
            for pivot in range(1, min(base.num_steps for _, base in whole)):
                for way in WAYS[:: 1 if (number + pivot) % 2 else -1]:
                    await policy.engine.reset_prefix_cache()
                    before = policy.metrics.generated_tokens
                    cpu, began = cpu_seconds(), time.monotonic()
                    again = await few_at_once(
                        (
                            played(makes[way], task, Retry(base, pivot, GUIDANCE, of=0), tokens)
                            for task, base in whole
                        ),
                        at_once,
                    )
                    took = time.monotonic() - began, cpu_seconds() - cpu
                    assert not [each for each in again if isinstance(each, EpisodeError)], again
                    sampled = policy.metrics.generated_tokens - before
                    one = (len(again), sampled, *took)
                    row = spent[pivot, way]
                    row[:] = [a + b for a, b in zip(row, one, strict=True)]
            print(f"after round {number + 1}:", *table(spent), sep="\n", flush=True)
    policy.close()


def table(spent: dict[tuple[int, str], list[float]]) -> list[str]:
    """Shows what a retry from the tape and a restart take from each step, and what is saved."""
    lines = ["| step | retries | tokens | saved | seconds | saved | CPU seconds | saved |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for pivot in sorted({pivot for pivot, _ in spent}):
        count, *mine = spent[pivot, "tape"]
        _, *other = spent[pivot, "restart"]
        cells = [
            f"{a / count:.{digits}f} / {b / count:.{digits}f} | {1 - a / b:.0%}"
            for a, b, digits in zip(mine, other, (1, 3, 4), strict=True)
        ]
        lines.append(f"| {pivot} | {count:.0f} | {' | '.join(cells)} |")
    return lines


def shown(config: RunConfig) -> str:
    """Returns what a dry run says of a configuration."""
    agent, options = config.actor.agent, config.env.options
    return f"{config.model} in {config.env.name} {options}, {agent.max_divergences} divergences"


async def _reached(env: str, config: RunConfig, retries: int, at_once: int) -> Counter[str]:
    if env != "workshop":
        return await reached(config, MadeUp(env, 0), retries, at_once)
    policy = VLLMPolicy.start(model_path(config.model), config.actor)
    try:
        return await reached(config, policy, retries, at_once)
    finally:
        policy.close()


@click.group("lab.retries", cls=OneLineGroup)
def main() -> None:
    """Measure retries of agents."""


@main.command("reached")
@click.argument("env")
@click.option("--retries", default=200, show_default=True, help="at least so many")
@click.option("--python", default="", help="the interpreter with verifiers")
@click.option("--ignore", is_flag=True, help="ignore the times that ls -l shows")
@click.option("--at-once", default=4, show_default=True, help="attempts at the same time")
@DRY_RUN
def reached_(
    env: str, retries: int, python: str, ignore: bool, at_once: int, dry_run: bool
) -> None:
    """Count the retries that reach their step."""
    more = [f"actor.agent.ignore={json.dumps([DATES])}"] if ignore else []
    with tempfile.TemporaryDirectory() as folder:
        config = settings(env, Path(folder), *more, python=python)
        if dry_run:
            click.echo(f"{retries} retries, {at_once} at once: {shown(config)}")
            return
        found = asyncio.run(_reached(env, config, retries, at_once))
    tried = found.total() - found["base failed"]
    click.echo(f"{env}: {found['reached']} of {tried} retries reached their step; {dict(found)}")


@main.command("refused")
@click.option("--worlds", default=1000, show_default=True, help="with a change that was seen")
@click.option("--seed", default=0, show_default=True)
@DRY_RUN
def refused_(worlds: int, seed: int, dry_run: bool) -> None:
    """Count the retries that are accepted in a folder that has changed."""
    with tempfile.TemporaryDirectory() as folder:
        config = settings("shell", Path(folder))
        if dry_run:
            click.echo(f"{worlds} changed worlds, seed {seed}: {shown(config)}")
            return
        found = asyncio.run(refused(config, MadeUp("shell", seed), worlds, seed))
    click.echo(f"{found['accepted']} accepted; {dict(found)}")


@main.command("saved")
@click.option("--model", default="builtin", show_default=True)
@click.option("--bases", default=16, show_default=True, help="attempts that are retried")
@click.option("--rounds", default=4, show_default=True)
@click.option("--at-once", default=8, show_default=True, help="attempts at the same time")
@click.option("--tokens", default=32, show_default=True, help="budget of a reply")
@DRY_RUN
def saved_(model: str, bases: int, rounds: int, at_once: int, tokens: int, dry_run: bool) -> None:
    """Compare retries from the tape with restarts."""
    with tempfile.TemporaryDirectory() as folder:
        config, restarting = (
            settings("workshop", Path(folder), f"model={model}", *more)
            for more in ((), ("actor.agent.max_divergences=0",))
        )
        if dry_run:
            for one in (config, restarting):
                click.echo(f"{bases} attempts, {rounds} rounds, {at_once} at once: {shown(one)}")
            return
        asyncio.run(saved(config, restarting, bases, rounds, at_once, tokens))


if __name__ == "__main__":
    main()
