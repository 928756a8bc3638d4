"""`r3l-actor` with an engine that guesses: everything but vLLM is real. It says which GPUs and what
share of their memory it was given, and which weights came."""

import asyncio
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from transformers import PreTrainedTokenizerFast  # the whole of AutoTokenizer would import torch

import actors.engine
from actors.cli import main
from actors.engine import VLLMPolicy
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.settings.actor import ActorConfig
from r3l.weights.manifest import Manifest

SECONDS = 0.2  # of a response
REFLECTION = {
    "trajectory_summary": "guessed", "root_cause_analysis": "wrong side",
    "trajectory_outcome": "failure", "improvement_suggestion": "say the other side",
    "retry_from_step": 0,
}  # fmt: skip


class SimulatedEngine(VLLMPolicy):
    """Says heads or tails, and reflects in valid JSON."""

    @classmethod
    def start(cls, model: Path, config: ActorConfig, metrics: ActorMetrics | None = None, *,
              seed: int = 0) -> "SimulatedEngine":  # fmt: skip
        chat = ChatFormat(PreTrainedTokenizerFast.from_pretrained(model))
        engine = SimpleNamespace(errored=False, shutdown=lambda: None)
        share = config.engine.get("gpu_memory_utilization")
        print("simulated on", os.environ["CUDA_VISIBLE_DEVICES"], "with", share, flush=True)
        return cls(engine, chat, config.max_model_len, metrics=metrics)

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        version = self.version
        self.metrics.requests_running += 1
        await asyncio.sleep(SECONDS)
        self.metrics.requests_running -= 1
        reflects = params.json_schema is not None
        reply = json.dumps(REFLECTION) if reflects else random.choice(("heads", "tails"))
        tokens = [*self.chat.tokenizer.encode(reply, add_special_tokens=False), self.chat.end_id]
        tokens = tokens[: params.max_tokens]
        self.metrics.generated_tokens += len(tokens)
        return Sample(tuple(tokens), (-0.7,) * len(tokens), version, self.version, "stop")

    async def load(self, path: str, manifest: Manifest) -> float:
        assert Path(path).stat().st_size > 0
        self.version = manifest.version
        print("loaded", manifest.version, flush=True)
        return 0.0

    async def hash_first_weights(self) -> None:
        pass


if __name__ == "__main__":
    actors.engine.VLLMPolicy = SimulatedEngine  # type: ignore[misc]
    main()
