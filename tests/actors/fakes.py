"""A real engine together with the publisher whose weights it follows."""

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import torch

from actors.engine import VLLMPolicy
from actors.weights.subscriber import WeightSubscriber
from learner.publishing.publisher import WeightPublisher
from r3l.run.settings.actor import ActorConfig
from r3l.weights.manifest import Adapters, digest_of

T = TypeVar("T")


Tensors = list[tuple[str, torch.Tensor]]


PROMPT = list(range(300, 420))


class Served:
    """An engine, the publisher it follows, and the loop both live in."""

    def __init__(self, model: Path, **engine: Any) -> None:
        small = {"kv_cache_memory_bytes": 64 << 20}
        config = ActorConfig(max_model_len=2048, engine=small | engine)
        self.policy = VLLMPolicy.start(model, config)
        self.publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000)
        self.runner = asyncio.Runner()
        self.subscriber = self.run(self._subscribe())
        self.version = 0

    async def _subscribe(self) -> WeightSubscriber:
        return WeightSubscriber(self.publisher.endpoint)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(asyncio.wait_for(work, 120))

    def update(self, weights: Tensors, adapters: Adapters | None = None) -> None:
        self.run(self.take(weights, adapters))

    async def take(self, weights: Tensors, adapters: Adapters | None = None) -> None:
        self.version += 1
        self.publisher.publish(self.version, weights, adapters=adapters)
        manifest = await self.subscriber.latest()
        assert manifest is not None
        staged = await self.subscriber.fetch(manifest)
        await self.policy.load(staged.path, manifest)
        self.subscriber.loaded = (manifest.origin, manifest.version)

    def logits(self) -> dict[int, float]:
        """Log-probabilities of the likeliest tokens after a prompt, straight from the engine."""
        return self.run(self.ask_logits())

    async def ask_logits(self) -> dict[int, float]:
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=20, detokenize=False)
        prompt, name = self.policy.prompt(PROMPT), f"logits-{time.monotonic()}"
        async for output in self.policy.engine.generate(prompt, params, name):
            final = output
        return {token: p.logprob for token, p in final.outputs[0].logprobs[0].items()}

    def fingerprint(self) -> str:
        return self.run(self.policy.hash_weights())

    def told_fingerprint(self) -> str:
        """The hash of the weights it holds, whose fingerprint must have the published digest."""
        found = self.policy.fingerprints[self.policy.version]
        assert digest_of(found) == self.publisher._manifest.digest
        return found.partition("/")[0]

    def close(self) -> None:
        self.policy.close()
        self.subscriber.close()
        self.publisher.close()
        self.runner.close()


def stepped(weights: Tensors, share: float = 0.01) -> Tensors:
    torch.manual_seed(0)
    return [(n, torch.where(torch.rand(t.shape) < share, t * 1.5, t)) for n, t in weights]
