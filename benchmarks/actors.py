"""`make bench-actors`: tokens per second through the actor's loop, and through the engine alone.

One engine, one run, in turn: the actor explores the workshop against a real buffer service; then
the engine is given every prompt the actor gave it, with the same parameters, in one batch. The
engine alone neither waits for environments nor knows which prompts follow from which. The actor
has a quarter more requests than the engine has places, so that some always wait for one.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import click

from actors.actor import Actor
from actors.engine import VLLMPolicy
from actors.weights.subscriber import WeightSubscriber
from buffer import AsyncBufferClient
from envs.builtin.policy import builtin_policy
from envs.registry import make, task_source
from launch.checks.presets import DEMO
from r3l import config as configuration
from r3l.actor_metrics import ActorMetrics
from r3l.config import RunConfig
from r3l.process.memory import freeze_heap
from r3l.records import Task
from r3l.rollout.interfaces import Environment, Sample, SampleParams

SERVE = [sys.executable, "-m", "buffer.cli", "serve", "--bind", "tcp://127.0.0.1:0",
         "buffer.max_staleness=100000", "learner.groups_per_step=1000"]  # fmt: skip


class Recorder(VLLMPolicy):
    """A policy that remembers what it was asked."""

    asked: list[tuple[tuple[int, ...], SampleParams]]

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        self.asked.append((tuple(token_ids), params))
        return await super().sample(token_ids, params)


async def through_the_loop(policy: Recorder, endpoint: str, config: RunConfig, seconds: float
                           ) -> tuple[int, float]:  # fmt: skip
    """(tokens sampled, seconds) of an actor at work; the first fifth is not counted."""

    def make_env(_: Task) -> Environment:
        return make(config.env.name, **config.env.options)

    subscriber = WeightSubscriber("tcp://127.0.0.1:9")
    async with AsyncBufferClient(endpoint) as client:
        await client.add_tasks(task_source(config.env.name).tasks("train", 4096, seed=0))
        await client.set_version(0)
        policy.metrics = ActorMetrics()
        actor = Actor("bench", policy, client, subscriber, make_env, config)
        running = asyncio.create_task(actor.run())
        await asyncio.sleep(seconds / 5)
        policy.asked, tokens, began = [], policy.metrics.generated_tokens, time.monotonic()
        await asyncio.sleep(seconds)
        took, tokens = time.monotonic() - began, policy.metrics.generated_tokens - tokens
        actor.stop.set()
        await running
    subscriber.close()
    return tokens, took


async def in_one_batch(policy: Recorder) -> tuple[int, float]:
    """(tokens sampled, seconds) for everything that was asked, all at once."""
    asked, policy.asked = policy.asked, []
    await policy.engine.reset_prefix_cache()
    before, began = policy.metrics.generated_tokens, time.monotonic()
    await asyncio.gather(*(VLLMPolicy.sample(policy, ids, params) for ids, params in asked))
    return policy.metrics.generated_tokens - before, time.monotonic() - began


async def measure(requests: int, seconds: float, repeat: int, endpoint: str) -> None:
    """Print both rates and their ratio."""
    overrides = [f"model={builtin_policy()}", f"actor.engine.max_num_seqs={requests}",
                 f"actor.concurrent_requests={requests * 5 // 4}"]  # fmt: skip
    config = configuration.load(DEMO, overrides)
    policy = Recorder.start(Path(config.model), config.actor)
    assert isinstance(policy, Recorder)
    freeze_heap()  # as an actor does
    policy.asked = []
    await through_the_loop(policy, endpoint, config, 5.0)  # kernels warm up
    rates, ratios = [], []
    for _ in range(repeat):
        tokens, took = await through_the_loop(policy, endpoint, config, seconds)
        sampled, alone = await in_one_batch(policy)
        rates.append((tokens / took, sampled / alone))
        ratios.append(rates[-1][0] / rates[-1][1])
        print(f"loop {rates[-1][0]:7.0f} tok/s, one batch {rates[-1][1]:7.0f} tok/s "
              f"({sampled} tokens), ratio {ratios[-1]:.2f}")  # fmt: skip
    metrics = policy.metrics
    print(
        f"median ratio {median(ratios):.2f} at {requests} requests; prefix cache hits "
        f"{metrics.cached_tokens / metrics.prompt_tokens:.0%}"
    )
    policy.close()


@click.command()
@click.option("--requests", default=64, show_default=True, help="places of the engine")
@click.option("--seconds", default=20.0, show_default=True, help="length of each run")
@click.option("--repeat", default=3, show_default=True, help="runs")
def main(requests: int, seconds: float, repeat: int) -> None:
    """Compare the actor's loop with its engine."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*SERVE, "--store", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as served:
            assert served.stdout is not None
            endpoint = served.stdout.readline().split()[-1]
            try:
                asyncio.run(measure(requests, seconds, repeat, endpoint))
            finally:
                served.terminate()


if __name__ == "__main__":
    main()
