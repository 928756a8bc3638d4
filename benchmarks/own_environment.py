"""`python -m benchmarks.own_environment`: what a file.py:Class costs against env.isolation=none.

A step is 96 attempts of one request of at most 64 tokens each, sampled by one vLLM engine from an
untrained policy of a million parameters. Each round plays the same attempts in every way, in
turn, the order reversed every other round, with an empty prefix cache each time:

    none        env.isolation=none, the class in this process
    in_process  the class declares in_process; env.isolation=auto
    workers     it does not, and runs in worker processes

CPU seconds are those of this process and of all it started.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil

from actors.engine import VLLMPolicy
from envs.isolation.pool import environments_of_all
from launch.checks.presets import DEMO
from launch.evaluation.play import play_all
from learner.evaluation.evaluation_folder import EvaluationFolder
from learner.warmup import tiny_policy
from r3l.records import Task
from r3l.rollout.env_interface import Environment
from r3l.run import config as configuration
from r3l.run.process.memory import freeze_heap
from r3l.run.settings.environment import EnvConfig

TOKENS = 64
WORDS = "river stone lamp window garden letter bridge candle".split()
FILE = f"""
from r3l.rollout.env_interface import EnvSpec

WORDS = {WORDS!r}


class Workers:
    spec = EnvSpec("own", "Say something.", max_steps=1, max_response_tokens={TOKENS})

    def reset(self, *, seed, options=None):
        return " ".join(WORDS[seed // 8**k % 8] for k in range(8)), {{}}

    def step(self, action):
        return "Done.", float(len(action) % 2), True, False, {{}}

    def close(self): ...


class InProcess(Workers):
    in_process = True
"""
WAYS = {"none": "none:Workers", "in_process": "auto:InProcess", "workers": "auto:Workers"}


def cpu_seconds() -> float:
    """Of this process and its living descendants, so far."""
    own = psutil.Process()
    used = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(times.user + times.system for times in used)


def write_model(folder: Path) -> None:
    """An untrained policy, which seldom ends a response before its budget."""
    tokenizer = tiny_policy.build_tokenizer([" ".join(WORDS), "Say something. Done."])
    tokenizer.save_pretrained(folder)
    tiny_policy.build_model(tokenizer, seed=0).save_pretrained(folder)


def table(steps: dict[str, list[tuple[float, float, int]]]) -> list[str]:
    """Medians of the (seconds, CPU seconds, tokens) of each way's steps, and ratios to `none`."""
    lines = ["| environment | s/step | ratio | CPU s/step | ratio | tokens/step |"]
    lines += ["|---|---|---|---|---|---|"]
    base = [median(one) for one in zip(*steps["none"], strict=True)]
    for way, measured in steps.items():
        seconds, cpu, tokens = (median(one) for one in zip(*measured, strict=True))
        lines.append(
            f"| {way} | {seconds:.3f} | {_ratio(seconds, base[0])} | {cpu:.3f} | "
            f"{_ratio(cpu, base[1])} | {tokens:.0f} |"
        )
    return lines


def _ratio(value: float, base: float) -> str:
    return f"{value / base:.3f}" if base else "–"  # below the clock's resolution


async def measure(folder: Path, requests: int, rounds: int, steps: int) -> None:
    """Play and print the table; the first round of each way is not counted."""
    write_model(folder / "model")
    (folder / "own.py").write_text(FILE, encoding="utf-8")
    overrides = [f"model={folder / 'model'}", f"actor.concurrent_requests={requests}",
                 f"actor.engine.max_num_seqs={requests}", "eval.temperature=1"]  # fmt: skip
    config = configuration.load(DEMO, overrides)
    policy = VLLMPolicy.start(Path(config.model), config.actor)
    freeze_heap()  # as an actor does
    found: dict[str, list[tuple[float, float, int]]] = {way: [] for way in WAYS}

    async def step(
        number: int, make_env: Callable[[Task], Environment]
    ) -> tuple[float, float, int]:
        first = number * requests
        tasks = [Task(f"own/{n}", "own", n) for n in range(first, first + requests)]
        await policy.engine.reset_prefix_cache()
        results = EvaluationFolder(folder / f"results-{time.monotonic_ns()}", {})
        cpu, began, tokens = cpu_seconds(), time.monotonic(), policy.metrics.generated_tokens
        await play_all(tasks, 1, results, policy, make_env, config, at_once=requests)
        took, cpu = time.monotonic() - began, cpu_seconds() - cpu
        failed = [result.cause for result in results.done.values() if result.cause]
        assert not failed, failed
        return took, cpu, policy.metrics.generated_tokens - tokens

    try:
        async with AsyncExitStack() as open_envs:
            make_env: dict[str, Callable[[Task], Any]] = {}
            for way, place in WAYS.items():
                isolation, _, kind = place.partition(":")
                values = {"name": f"{folder / 'own.py'}:{kind}", "isolation": isolation}
                env = EnvConfig.model_validate(values)
                make_env[way] = await open_envs.enter_async_context(
                    environments_of_all(env, requests)
                )
            for number in range(rounds + 1):
                for way in list(WAYS)[:: 1 if number % 2 else -1]:
                    measured = [
                        await step(number * steps + one, make_env[way]) for one in range(steps)
                    ]
                    found[way] += measured if number else []
    finally:
        policy.close()
    click.echo("\n".join(table(found)))


@click.command()
@click.option("--requests", default=96, show_default=True, help="attempts of a step")
@click.option("--rounds", default=10, show_default=True, help="of every way")
@click.option("--steps", default=5, show_default=True, help="of a round and way")
def main(requests: int, rounds: int, steps: int) -> None:
    """Compare own environments with env.isolation=none."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), requests, rounds, steps))


if __name__ == "__main__":
    main()
