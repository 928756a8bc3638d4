"""`make bench-actors`: tokens per second through the actor's loop, and through the engine alone.

One engine, one run, in turn: the actor explores the workshop against a real buffer service; then
the engine is given every prompt the actor gave it, with the same parameters, in one batch. The
engine alone neither waits for environments nor knows which prompts follow from which. The actor
has a quarter more requests than the engine has places, so that some always wait for one.

`python -m benchmarks.actors --agent` compares the actor's loop in the workshop with the same loop
and `examples/agents/workshop_agent.py`, an agent that plays the workshop in its own process; one
limit holds for the replies of both.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from actors.actor import Actor
from actors.agents.agent_attempt import agents_served
from actors.engine import VLLMPolicy
from actors.weights.subscriber import WeightSubscriber
from buffer import AsyncBufferClient
from envs.isolation.pool import environments_of_all
from envs.registry import make, tasks_of_all
from launch.checks.presets import DEMO
from r3l.models.model_path import builtin_policy, model_path
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run import config as configuration
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import RunConfig
from r3l.run.process.memory import freeze_heap

SERVE = [sys.executable, "-m", "buffer.cli", "serve", "--bind", "tcp://127.0.0.1:0",
         "buffer.max_staleness=100000", "learner.groups_per_step=1000"]  # fmt: skip
AGENT = ["env=agent", "env.options={command: examples/agents/workshop_agent.py:play, "
         "tasks: examples/agents/workshop.jsonl}"]  # fmt: skip


class Recorder(VLLMPolicy):
    """A policy that remembers what it was asked."""

    asked: list[tuple[tuple[int, ...], SampleParams]]

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        self.asked.append((tuple(token_ids), params))
        return await super().sample(token_ids, params)


@dataclass
class Spent:
    """What a part of a run took: sampled tokens, calls of the engine, the tokens of prompts that
    were not in its prefix cache, seconds, and CPU seconds of all processes."""

    tokens: int
    calls: int
    read: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Bench:
    """An engine, and buffer services that end with it. `usage`: a file with the CPU nanoseconds of
    the control group that this process is in; without it no CPU seconds are counted."""

    def __init__(self, policy: Recorder, usage: Path | None, services: ExitStack) -> None:
        self.policy, self.usage, self.services = policy, usage, services
        self.endpoints: dict[str, str] = {}

    def endpoint(self, config: RunConfig) -> str:
        """Returns the buffer service of an environment, which is started at first."""
        if config.env.name not in self.endpoints:
            store = self.services.enter_context(tempfile.TemporaryDirectory())
            command = [*SERVE, "--store", store]
            served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            self.services.callback(served.wait)
            self.services.callback(served.terminate)
            assert served.stdout is not None
            self.endpoints[config.env.name] = served.stdout.readline().split()[-1]
        return self.endpoints[config.env.name]

    def cpu(self) -> float:
        return int(self.usage.read_text()) / 1e9 if self.usage else 0.0

    async def through_the_loop(self, config: RunConfig, seconds: float) -> Spent:
        """Measures an actor at work; the first fifth is not counted."""
        policy, wanted = self.policy, config.actor.concurrent_requests
        policy.metrics = metrics = ActorMetrics()
        async with (
            environments_of_all(config.env, wanted) as made,
            agents_served(made, config, policy, metrics) as make_env,
            AsyncBufferClient(self.endpoint(config)) as client,
        ):
            await client.add_tasks(tasks_of_all(config.env, "train", 4096))
            await client.set_version(0)
            subscriber = WeightSubscriber("tcp://127.0.0.1:9")
            actor = Actor("bench", policy, client, subscriber, make_env, config)
            running = asyncio.create_task(actor.run())
            await asyncio.sleep(seconds / 5)
            policy.asked, (sampled, read) = [], _counted(metrics)
            cpu, began = self.cpu(), time.monotonic()
            await asyncio.sleep(seconds)
            took, (sampled_since, read_since) = time.monotonic() - began, _counted(metrics)
            counts = sampled_since - sampled, len(policy.asked), read_since - read
            spent = Spent(*counts, took, self.cpu() - cpu)
            actor.stop.set()
            await running
            subscriber.close()
        return spent


def _counted(metrics: ActorMetrics) -> tuple[int, int]:
    return metrics.generated_tokens, metrics.prompt_tokens - metrics.cached_tokens


async def in_one_batch(policy: Recorder) -> tuple[int, float]:
    """(tokens sampled, seconds) for everything that was asked, all at once."""
    asked, policy.asked = policy.asked, []
    await policy.engine.reset_prefix_cache()
    before, began = policy.metrics.generated_tokens, time.monotonic()
    await asyncio.gather(*(VLLMPolicy.sample(policy, ids, params) for ids, params in asked))
    return policy.metrics.generated_tokens - before, time.monotonic() - began


def settings(model: str, requests: int, *more: str) -> RunConfig:
    """Returns the settings of a run with `requests` places in the engine."""
    overrides = [f"model={model}", f"actor.engine.max_num_seqs={requests}",
                 f"actor.concurrent_requests={requests * 5 // 4}",
                 f"actor.engine.kv_cache_memory_bytes={2 << 30}"]  # fmt: skip
    return configuration.load(DEMO, [*overrides, *more])


async def loop_and_batch(bench: Bench, config: RunConfig, seconds: float, repeat: int) -> None:
    """Print the rates of the loop and of the engine alone, and their ratio."""
    ratios, policy = [], bench.policy
    for _ in range(repeat):
        loop = await bench.through_the_loop(config, seconds)
        sampled, alone = await in_one_batch(policy)
        ratios.append(loop.rate / (sampled / alone))
        print(f"loop {loop.rate:7.0f} tok/s, one batch {sampled / alone:7.0f} tok/s "
              f"({sampled} tokens), ratio {ratios[-1]:.2f}")  # fmt: skip
    requests, metrics = config.actor.engine["max_num_seqs"], policy.metrics
    print(
        f"median ratio {median(ratios):.2f} at {requests} requests; prefix cache hits "
        f"{metrics.cached_tokens / metrics.prompt_tokens:.0%}"
    )


async def world_and_agent(
    bench: Bench, world: RunConfig, agent: RunConfig, seconds: float, repeat: int
) -> None:
    """Print the rates of the loop in a world and with an agent that plays it, in turn."""
    await bench.through_the_loop(agent, 5.0)
    ratios = []
    for _ in range(repeat):
        pair = [await bench.through_the_loop(config, seconds) for config in (world, agent)]
        ratios.append(pair[1].rate / pair[0].rate)
        for name, spent in zip(("world", "agent"), pair, strict=True):
            each = f"{spent.tokens / spent.calls:.1f} sampled, {spent.read / spent.calls:.1f} read"
            print(f"{name}: {spent.rate:6.0f} tok/s, {1e3 * spent.cpu / spent.tokens:6.2f} CPU "
                  f"s/1000; tokens a call: {each}", flush=True)  # fmt: skip
        print(f"ratio {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {median(ratios):.2f}")


async def measure(
    model: str,
    requests: int,
    seconds: float,
    repeat: int,
    agent: bool,
    tokens: int | None,
    usage: Path | None,
) -> None:
    """Start the engine and compare."""
    most = tokens or make("workshop").spec.max_response_tokens
    more = ["algorithm=grpo", f"actor.max_response_tokens={most}"] if agent else []
    config = settings(model, requests, *more)
    policy = Recorder.start(model_path(config.model), config.actor)
    assert isinstance(policy, Recorder)
    freeze_heap()  # as an actor does
    policy.asked = []
    work = asyncio.current_task()
    assert work is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with ExitStack() as services:  # SIGTERM ends them, too
        services.callback(policy.close)
        bench = Bench(policy, usage, services)
        await bench.through_the_loop(config, 5.0)  # kernels warm up
        if agent:
            other = settings(model, requests, *more, *AGENT)
            await world_and_agent(bench, config, other, seconds, repeat)
        else:
            await loop_and_batch(bench, config, seconds, repeat)


@click.command()
@click.option("--model", default=str(builtin_policy()), help="default: the built-in policy")
@click.option("--requests", default=64, show_default=True, help="places of the engine")
@click.option("--seconds", default=20.0, show_default=True, help="length of each run")
@click.option("--repeat", default=3, show_default=True, help="runs")
@click.option("--agent", is_flag=True, help="compare the workshop with an agent that plays it")
@click.option("--tokens", type=click.IntRange(1), help="with --agent: the most tokens "
              "of a reply; default: what the workshop allows")  # fmt: skip
@click.option("--usage", type=Path, help="with --agent: a file with the CPU nanoseconds of the "
              "control group that this runs in, cpuacct.usage")  # fmt: skip
def main(**given: Any) -> None:
    """Compare the actor's loop with its engine."""
    asyncio.run(measure(**given))


if __name__ == "__main__":
    main()
