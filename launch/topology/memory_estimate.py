"""How much GPU memory the processes of a run need, before any of them is started.

P parameters, N ranks, T tokens of a micro-batch, L layers, width h, b bytes of a number (2 in
bfloat16, 4 in float32), t GPUs of an actor.

A rank of the learner (mixed-precision AdamW, arXiv:1910.02054, section 3; stages 1, 2, 3 of ZeRO
split optimizer states, gradients, weights over the ranks):

    weights        b·P                                       /N at stage 3; 0 if offloaded
    gradients      6·P in bfloat16 (their float32 sum too), 4·P in float32    /N from stage 2
    optimizer      12·P (float32 weights and two moments), 8·P in float32 at stage 0
                                                             /N from stage 1; 0 if offloaded
    reference      b·P if the algorithm has a KL term        /N at stage 3
    activations    17·b·h a token and layer (arXiv:2205.05198, section 4.1; attention keeps no
                   scores); with gradient checkpointing b·h a layer and one layer in full
    logits         12 bytes a vocabulary entry of CHUNK positions at a time
    fixed          2 GiB: CUDA's context, NCCL's and DeepSpeed's buffers

With `learner.lora` only its adapters have gradients and an optimizer: P there is rank·20·h·L, what
all linear layers of a Llama-like block have (its feed-forward part 3.5 h wide).

An actor, on each of its GPUs:

    weights        b·P/t
    KV             2·b·L·(key-value heads)·(head width)/t a token (a head is not split), for
                   `actor.concurrent_requests` of `actor.max_model_len` tokens; it runs with less,
                   down to one such request, and the others wait
    fixed          2 GiB: CUDA's context and graphs, vLLM's activations
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from learner.step.deepspeed_config import zero_stage
from r3l.config import RunConfig
from r3l.model_folder import float32_bytes
from r3l.settings.actor import ActorConfig
from r3l.settings.learner import LearnerConfig

GIB = float(1 << 30)
CHUNK = 1024  # positions whose logits exist at a time, as in learner.step.model
FIXED_GIB = 2.0


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides its memory."""

    parameters: int
    layers: int
    width: int
    kv_heads: int
    head_width: int
    vocabulary: int


def model_shape(folder: Path) -> ModelShape | None:
    """The shape of a Hugging Face model folder; None if its config.json does not tell."""
    settings: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    text = settings.get("text_config")
    inner = settings | (text if isinstance(text, dict) else {})
    parameters = float32_bytes(folder) // 4
    layers, width, heads, vocabulary = (
        inner.get(key)
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    )
    if not (parameters and layers and width and heads and vocabulary):
        return None
    kv_heads = inner.get("num_key_value_heads") or heads
    head_width = inner.get("head_dim") or width // heads
    return ModelShape(parameters, layers, width, kv_heads, head_width, vocabulary)


@dataclass(frozen=True)
class Estimate:
    """The needs of a run's processes on GPUs. `reference`: the loss needs a
    reference model; with adapters it is the model without them."""

    shape: ModelShape
    learner: LearnerConfig
    actor: ActorConfig
    reference: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> Estimate | None:
        """The estimate of a run whose model is a folder; None if the model does not tell."""
        shape = model_shape(Path(config.model))
        if shape is None:
            return None
        return cls(shape, config.learner, config.actor, config.algorithm.build().needs_reference)

    def with_learner(self, **settings: Any) -> Estimate:
        """The same run with other settings of the learner."""
        return replace(self, learner=self.learner.model_copy(update=settings))

    def learner_parts(self, ranks: int) -> dict[str, float]:
        """GiB of one rank by part."""
        shape, learner = self.shape, self.learner
        bf16 = learner.dtype != "float32"
        stage, size = zero_stage(learner, bf16=bf16), 2 if bf16 else 4
        whole, rank = shape.parameters / GIB, learner.lora.rank
        trained = min(whole, rank * 20 * shape.width * shape.layers / GIB) if rank else whole
        states = trained / ranks if stage >= 1 else trained
        gradients = trained / ranks if stage >= 2 else trained
        weights = whole / ranks if stage >= 3 else whole
        tokens = max(learner.tokens_per_micro_batch, self.actor.max_model_len)
        a_layer = 17 * size * shape.width * tokens / GIB
        kept = size * shape.width * tokens * shape.layers / GIB
        parts = {
            "weights": 0.0 if learner.offload == "all" else size * weights,
            "gradients": (6 if bf16 else 4) * gradients,
            "optimizer": (12 if stage else 8) * states if learner.offload == "none" else 0.0,
            "reference": size * weights if self.reference and not rank else 0.0,
            "activations": kept + a_layer
            if learner.gradient_checkpointing
            else shape.layers * a_layer,
            "logits": 12 * shape.vocabulary * min(CHUNK, tokens) / GIB,
            "fixed": FIXED_GIB,
        }
        return {name: gib for name, gib in parts.items() if gib}

    def actor_parts(self, gpus: int, requests: int) -> dict[str, float]:
        """GiB of one actor on each of its GPUs by part, with room for so many requests."""
        weights = self._actor_bytes * self.shape.parameters / gpus / GIB
        cache = self._given_cache or requests * self._request_gib(gpus)
        return {"weights": weights, "KV": cache, "fixed": FIXED_GIB}

    def requests_held(self, gpus: int, gib: float) -> int:
        """How many requests of full length an actor holds at a time with so many GiB of each of
        its GPUs."""
        parts = self.actor_parts(gpus, 0)
        cache = self._given_cache or gib - total(parts)
        return max(0, int(cache / self._request_gib(gpus)))

    def _request_gib(self, gpus: int) -> float:
        """GiB of the keys and values of one request of full length on each GPU of an actor."""
        heads = max(1, -(-self.shape.kv_heads // gpus))
        a_token = 2 * self._actor_bytes * self.shape.layers * heads * self.shape.head_width
        return a_token * self.actor.max_model_len / GIB

    @property
    def _given_cache(self) -> float:
        """GiB of keys and values that the user gives to an actor; 0 if vLLM takes what is left."""
        return float(self.actor.engine.get("kv_cache_memory_bytes") or 0) / GIB

    @property
    def _actor_bytes(self) -> int:
        return 4 if self.actor.dtype == "float32" else 2


def total(parts: dict[str, float]) -> float:
    """The sum of all parts, GiB."""
    return sum(parts.values())


def arithmetic(parts: dict[str, float]) -> str:
    """The sum as text, such as `14.2 weights + 2.0 fixed = 16.2 GiB`."""
    summands = " + ".join(f"{gib:.1f} {name}" for name, gib in parts.items())
    return f"{summands} = {total(parts):.1f} GiB"
