"""`make bench-weights`: what it costs to bring new weights into running engines.

    publisher process ── loopback ──► subscriber and a vLLM engine in this process

All figures of one run, so that their ratios mean something on a busy machine: the same bytes over
plain ZeroMQ, a load through vLLM, whole updates, updates at three learning rates, many
subscribers at once, and the pause that a running request sees. Seconds are medians.

Simulated subscribers do what the wire asks of one: request chunk by chunk, receive, check each
checksum. What every host does in its own memory, staging and loading, is not theirs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import psutil
import torch
import zmq
import zmq.asyncio

from actors.weights.staging import UNKNOWN, StagedWeights
from actors.weights.subscriber import WeightSubscriber
from learner.publisher import WeightPublisher
from r3l.process import STEADY_MEMORY, freeze_heap
from r3l.weights.chunks import LOOPBACK, NETWORK, check
from r3l.weights.manifest import Layout, Manifest

UPDATES: dict[str, tuple[float, dict[str, Any]]] = {
    "dense": (1e-6, {"anchor": True}),
    "lr 1e-6": (1e-6, {}),
    "lr 1e-5": (1e-5, {}),
    "lr 1e-4": (1e-4, {}),
    "lr 1e-6, as over a network": (1e-6, {"local": False}),
    "lr 1e-5, as over a network": (1e-5, {"local": False}),
}
"""Learning rate of the step before it, and how the update is published."""
SUBSCRIBERS = 16
LEARNERS = STEADY_MEMORY | os.environ
"""Environment of the publisher, as a learner's: without what an engine sets for itself."""
PAUSES, LONG = 10, 60  # updates, and tokens of the requests that run meanwhile
Figures = dict[str, float]


def build_model(folder: Path, hidden: int, layers: int) -> None:
    """A random Qwen2 of about 100 M parameters (hidden 768, 12 layers), with a tokenizer."""
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from envs.builtin.policy import builtin_policy

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=8 * hidden // 3 // 64 * 64,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    AutoTokenizer.from_pretrained(builtin_policy()).save_pretrained(folder)


class Learner:
    """The publishing side: float32 master weights, AdamW on random gradients."""

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        state = sorted(load_file(folder / "model.safetensors").items())
        self.master = [(name, torch.nn.Parameter(t.float())) for name, t in state]
        self.publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1 << 30)
        self.version = 0

    def step(self, rate: float) -> Figures:
        """One optimizer step at `rate`, after two that only fill its moments."""
        parameters = [p for _, p in self.master]
        optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
        for step in range(3):
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter)
            optimizer.param_groups[0]["lr"] = rate if step == 2 else 0.0
            optimizer.step()
        for parameter in parameters:
            parameter.grad = None
        return {}

    def publish(self, anchor: bool, local: bool) -> Figures:
        """Offer the weights as they are now."""
        weights = [(name, p.detach().bfloat16()) for name, p in self.master]
        self.version += 1
        self.publisher.anchor_every = 1 if anchor else 1 << 30
        self.publisher.link = LOOPBACK if local else NETWORK
        return self.publisher.publish(self.version, weights)

    def serve(self) -> None:
        """Obey one JSON line after the other; the bytes that were published last are also offered
        plain."""
        raw: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        port = raw.bind_to_random_port("tcp://127.0.0.1")
        print(json.dumps([self.publisher.endpoint, f"tcp://127.0.0.1:{port}"]), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            figures: Figures = {}
            if "raw" in order:
                for chunk in filter(None, self.publisher._chunks):
                    raw.send(chunk.data.data, copy=False)
            elif "rate" in order:
                figures = self.step(**order)
            else:
                figures = self.publish(**order)
            print(json.dumps(figures), flush=True)


class Publisher:
    """The publisher's process as the benchmark sees it."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.weights", "--serve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=LEARNERS,
            text=True,
        )
        self.endpoint, self.raw = self._answer()

    def order(self, **order: Any) -> Any:
        """Have something done; waits until it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def resident(self) -> float:
        """Resident memory, MB."""
        return psutil.Process(self.process.pid).memory_info().rss / 1e6

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


async def raw_transfer(publisher: Publisher, size: int) -> float:
    """Seconds for `size` bytes over a plain PUSH/PULL pair, chunk by chunk."""
    with zmq.asyncio.Context.instance().socket(zmq.PULL) as pull:
        pull.connect(publisher.raw)
        began, left = time.monotonic(), size
        asked = asyncio.create_task(asyncio.to_thread(publisher.order, raw=True))
        while left > 0:
            left -= len((await pull.recv(copy=False)).buffer)
        took = time.monotonic() - began
        await asked
    return took


async def update(publisher: Publisher, policy: Any, subscriber: Any, **order: Any) -> Figures:
    """Publish, fetch, load: figures of one update."""
    figures: Figures = await asyncio.to_thread(publisher.order, **order)
    before = subscriber.metrics.weights_full_bytes + subscriber.metrics.weights_patch_bytes
    manifest = await subscriber.latest()
    began = time.monotonic()
    staged = await subscriber.fetch(manifest)
    figures["fetch_s"] = time.monotonic() - began
    figures["load_s"] = await policy.load(staged.path, manifest)
    figures["loaded_at"] = time.monotonic()
    subscriber.loaded = (manifest.origin, manifest.version)
    after = subscriber.metrics.weights_full_bytes + subscriber.metrics.weights_patch_bytes
    figures["received"] = float(after - before)
    figures["total_s"] = figures["publish_s"] + figures["fetch_s"] + figures["load_s"]
    return figures


def medians(runs: list[Figures]) -> Figures:
    """Median of each figure."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


async def pauses(policy: Any, prepare: Any, change: Any) -> tuple[list[Figures], list[float]]:
    """What PAUSES updates, each prepared before, cost requests that run meanwhile, the longest of
    each: seconds that the `load` took, that a request `stopped` from its last token before to the
    end of the load, and that the `next` token came after that; and how long a token takes where
    nothing is updated."""
    runs: list[Figures] = []
    usual: list[float] = []
    for _ in range(PAUSES):
        await prepare()
        arrivals: list[list[float]] = [[] for _ in range(4)]
        watching = [
            asyncio.create_task(watch(policy, number, times))
            for number, times in enumerate(arrivals)
        ]
        while min(len(times) for times in arrivals) < LONG // 5:
            await asyncio.sleep(0.01)
        usual += np.diff(arrivals[0][-10:]).tolist()
        figures = await change()
        loaded = figures["loaded_at"]
        assert not any(task.done() for task in watching), "a request ended before the update did"
        assert await asyncio.gather(*watching) == [LONG] * 4, "a request was lost or cut"
        before = [times[bisect(times, loaded) - 1] for times in arrivals]
        after = [times[bisect(times, loaded)] for times in arrivals]
        stopped, following = loaded - min(before), max(after) - loaded
        runs.append({"load": figures["load_s"], "stopped": stopped, "next": following})
    return runs, usual


async def watch(policy: Any, number: int, arrivals: list[float]) -> int:
    """Generate LONG tokens, noting when each arrives; returns how many did."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        max_tokens=LONG, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
    )
    tokens, prompt = 0, policy.prompt([5 + number] * 20)
    async for output in policy.engine.generate(prompt, params, f"p{time.monotonic()}{number}"):
        arrivals.append(time.monotonic())
        tokens += len(output.outputs[0].token_ids)
    return tokens


def report_pauses(runs: list[Figures], usual: list[float]) -> None:
    """What a request waits for beyond the load, and the step that makes its next token."""
    loads, following = [run["load"] for run in runs], [run["next"] for run in runs]
    beyond = [run["stopped"] - run["load"] for run in runs]
    print(
        f"{len(runs)} updates under running requests, a load takes {median(loads):.3f} s "
        f"({min(loads):.3f} to {max(loads):.3f}): a request stands still "
        f"{1e3 * median(beyond):+.0f} ms longer (at most {1e3 * max(beyond):+.0f}); its next "
        "token then takes "
        f"{1e3 * median(following):.0f} ms (at most {1e3 * max(following):.0f}), others "
        f"{1e3 * median(usual):.0f} ms (at most {1e3 * max(usual):.0f}); none lost, none restarted"
    )


async def crowd(publisher: Publisher, stopped: bool) -> tuple[float, float]:
    """(seconds until SUBSCRIBERS new subscribers have everything, the publisher's largest
    resident memory in MB); `stopped`: beside one that was stopped in the middle."""
    frozen = None
    if stopped:
        command = [sys.executable, "-m", "benchmarks.weights", "--fetch", publisher.endpoint]
        frozen = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert frozen.stdout is not None
        frozen.stdout.readline()
        os.kill(frozen.pid, signal.SIGSTOP)
    peak, over = publisher.resident(), False

    async def watch_memory() -> None:
        nonlocal peak
        while not over:
            peak = max(peak, publisher.resident())
            await asyncio.sleep(0.05)

    async def join() -> None:
        subscriber = Simulated(publisher.endpoint, timeout_s=120)
        manifest = await subscriber.latest()
        assert manifest is not None
        await subscriber.fetch(manifest)
        subscriber.close()

    watching, began = asyncio.create_task(watch_memory()), time.monotonic()
    await asyncio.gather(*(join() for _ in range(SUBSCRIBERS)))
    took, over = time.monotonic() - began, True
    await watching
    if frozen is not None:
        frozen.kill()
        frozen.wait()
    return took, peak


class Checked(StagedWeights):
    """Chunks that are checked and then forgotten."""

    def __init__(self, layout: Layout, origin: str) -> None:
        self.layout, self.origin = layout, origin
        self.versions = [UNKNOWN] * layout.num_chunks

    def close(self) -> None:
        """Nothing was kept."""

    def replace(self, index: int, manifest: Manifest, data: memoryview) -> None:
        check(np.frombuffer(data, dtype=np.uint8), manifest, index)


class Simulated(WeightSubscriber):
    """A subscriber without the memory to keep what it receives."""

    def _stage(self, manifest: Manifest) -> StagedWeights:
        self.staged = Checked(manifest.layout, manifest.origin)
        return self.staged


class NoEngine:
    """Takes weights and does nothing with them."""

    async def load(self, path: str, manifest: Any) -> float:
        """Seconds of the load: none."""
        return 0.0

    def close(self) -> None:
        """Nothing to end."""


def start_engine(folder: Path) -> Any:
    """The model in a vLLM engine."""
    from actors.engine import VLLMPolicy
    from r3l.config import ActorConfig

    cache = {"kv_cache_memory_bytes": 1 << 28}
    config = ActorConfig(dtype="bfloat16", max_model_len=1024, engine=cache)
    policy = VLLMPolicy.start(folder, config)
    freeze_heap()  # as an actor does
    return policy


async def measure(folder: Path, repeat: int, policy: Any) -> None:
    """Everything, printed as it comes."""
    publisher = Publisher(folder)
    subscriber = WeightSubscriber(publisher.endpoint, timeout_s=120)

    async def step(rate: float = 1e-6) -> None:
        await asyncio.to_thread(publisher.order, rate=rate)

    async def change(*, anchor: bool = False, local: bool = True) -> Figures:
        return await update(publisher, policy, subscriber, anchor=anchor, local=local)

    size = int((await change(anchor=True))["full_bytes"])
    print(f"{size / 1e6:.0f} MB, {size / 2e6:.0f} M parameters in bf16, {repeat} runs each\n")
    raw: list[float] = []
    runs: dict[str, list[Figures]] = {name: [] for name in UPDATES}
    for _ in range(repeat):
        raw.append(await raw_transfer(publisher, size))
        for name, (rate, how) in UPDATES.items():
            await step(rate)
            runs[name].append(await change(**how))
    dense = medians(runs["dense"])
    dense_moved = dense["publish_s"] + dense["fetch_s"]
    bound = median(raw) + dense["load_s"]
    print(f"{'update':<26}  sent    bytes   publish  fetch   load    in all  of dense  no load")
    for name, figures in ((name, medians(runs[name])) for name in runs):
        moved = figures["publish_s"] + figures["fetch_s"]
        print(
            f"{name:<26} "
            f"{figures['patch_density']:6.1%}  {figures['received'] / size:6.2%} "
            f"{figures['publish_s']:7.3f} {figures['fetch_s']:7.3f} {figures['load_s']:7.3f} "
            f"{figures['total_s']:8.3f} {figures['total_s'] / dense['total_s']:8.2f} "
            f"{moved / dense_moved:8.2f}"
        )
    print(
        f"\ndense, {dense['total_s']:.3f} s, is {dense['total_s'] / bound:.2f} × raw ZeroMQ "
        f"({median(raw):.3f} s) plus one load ({dense['load_s']:.3f} s)"
    )
    if not isinstance(policy, NoEngine):
        report_pauses(*await pauses(policy, step, change))
    policy.close()
    await measure_crowd(publisher, size, repeat)
    publisher.process.kill()
    publisher.process.wait()
    subscriber.close()


async def measure_crowd(publisher: Publisher, size: int, repeat: int) -> None:
    """Many subscribers at once, each time after a raw transfer of what one of them fetches, since
    the machine's speed changes from minute to minute; and again beside one that was stopped."""
    before = publisher.resident()
    runs: list[Figures] = []
    for _ in range(repeat):
        raw = await raw_transfer(publisher, size)
        free, peak = await crowd(publisher, stopped=False)
        beside, peak_beside = await crowd(publisher, stopped=True)
        of_raw = free / (SUBSCRIBERS * raw)
        runs.append({"raw": raw, "free": free, "of_raw": of_raw, "beside": beside,
                     "peak": peak, "peak_beside": peak_beside})  # fmt: skip
    middle = medians(runs)
    print(
        f"{SUBSCRIBERS} subscribers: {middle['free']:.2f} s, {middle['of_raw']:.2f} × "
        f"({min(run['of_raw'] for run in runs):.2f} to {max(run['of_raw'] for run in runs):.2f}) "
        f"{SUBSCRIBERS} raw transfers ({middle['raw']:.3f} s); beside a stopped one "
        f"{middle['beside']:.2f} s; publisher {before:.0f} MB before, "
        f"{max(run['peak'] for run in runs):.0f} and "
        f"{max(run['peak_beside'] for run in runs):.0f} MB at most"
    )


async def fetch_and_say(endpoint: str) -> None:
    """A subscriber that says when its first chunk is there."""
    subscriber = WeightSubscriber(endpoint)
    manifest = await subscriber.latest()
    assert manifest is not None
    fetching = asyncio.create_task(subscriber.fetch(manifest))
    while not subscriber.metrics.weights_full_bytes:
        await asyncio.sleep(0.001)
    print("begun", flush=True)
    await fetching


@click.command()
@click.option("--hidden", default=768, show_default=True, help="model width")
@click.option("--layers", default=12, show_default=True, help="model depth")
@click.option("--repeat", default=5, show_default=True, help="runs per figure")
@click.option("--engine/--no-engine", default=True, help="load into vLLM, or only transfer")
@click.option("--serve", type=Path, hidden=True)
@click.option("--fetch", hidden=True)
def main(
    hidden: int, layers: int, repeat: int, engine: bool, serve: Path | None, fetch: str | None
) -> None:
    """Measure weight updates over loopback into a real engine."""
    if serve is not None:
        Learner(serve).serve()
    elif fetch is not None:
        asyncio.run(fetch_and_say(fetch))
    else:
        with tempfile.TemporaryDirectory() as folder:
            build_model(Path(folder), hidden, layers)
            policy = start_engine(Path(folder)) if engine else NoEngine()
            asyncio.run(measure(Path(folder), repeat, policy))


if __name__ == "__main__":
    main()
