"""Estimates the least GPU memory that a run's processes need. Divides each GPU's memory among the
processes. Refuses processes that do not fit.

On a GPU that is shared, a rank gets what its model states need. The rest is split evenly: one share
for each actor on the GPU, and one for the rank's activations. An actor that shares no GPU gets
vLLM's default share, 90 %.

P: parameters. T: trained parameters. N: ranks. b: bytes of one number in an actor (2 in bfloat16,
4 in float32). t: GPUs of an actor.

Bytes of a learner's rank. The terms are those of `estimate_zero2_model_states_mem_needs` and
`estimate_zero3_model_states_mem_needs` in DeepSpeed 0.19, runtime/zero/stage_1_and_2.py and
stage3.py. Calling these functions would load torch. Stages 0 and 1 divide fewer terms by N:

    weights          2·P                                     /N at stage 3; 0 with offload=all
    gradients        6·T; 4·T at stage 3                     /N from stage 2; 0 with any offload
    optimizer        12·T                                    /N from stage 1; 0 with any offload
    largest layer    4·(parameters of the embedding) at stage 3
    buffer           2·5e8 at stage 3: a bucket of gradients (`reduce_bucket_size`)
    reference        2·P with a KL term and no adapters      /N at stage 3
    averaged         4·T if the algorithm needs averaged weights

With `learner.lora`, T is rank·20·h·L: the adapters of all linear layers of L Llama-like blocks of
width h, with feed-forward layers 3.5 h wide. Otherwise T is P.

Activations of a micro-batch of n tokens in bfloat16, in Llama-like blocks with feed-forward layers
of width f (v: vocabulary). The factors were fitted to two models on a GPU
(docs/results/appendix/performance.md):

    layers         n·L·(26·h + 8·f); with `learner.gradient_checkpointing` n·L·2·h
    head           20·1024·v: the head computes 1024 positions at a time

An actor, on each of its GPUs:

    weights        b·P/t
    KV             2·b·L·(key-value heads)·(head width)/t for each token. A head is not split.
                   At least one request of full length (`actor.max_model_len`) must fit. If fewer
                   than `actor.concurrent_requests` fit, the other requests wait
    fixed          2 GiB: CUDA's context and graphs, vLLM's activations
"""

import json
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from launch.topology.machines import ActorPlace, Machine, RequestedPlaces
from learner.step.deepspeed_config import zero_stage
from r3l.errors import UserError
from r3l.models.model_folder import float32_bytes
from r3l.run.config import RunConfig
from r3l.run.settings.actor import ActorConfig
from r3l.run.settings.learner import LearnerConfig
from r3l.text import GIB

FIXED_GIB = 2.0
CHUNK = 1024  # positions that the head computes at a time (r3l.training.model)
BUCKET = 500_000_000  # numbers in DeepSpeed's buffer of gradients
USABLE = 0.95  # of a GPU's memory; the rest is for the driver and fragmentation
MOST = 0.9  # of a GPU's memory for one engine, vLLM's own default


@dataclass(frozen=True)
class ModelShape:
    """A model's sizes. They determine how much memory the model needs."""

    parameters: int
    layers: int
    width: int
    kv_heads: int
    head_width: int
    vocabulary: int
    feed_forward: int


def model_shape(folder: Path) -> ModelShape | None:
    """Reads the shape of the model in a Hugging Face folder; None if config.json lacks a size."""
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
    feed_forward = inner.get("intermediate_size") or 4 * width
    return ModelShape(parameters, layers, width, kv_heads, head_width, vocabulary, feed_forward)


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimates the GPU memory of a run's processes. `reference`, `averaged`: whether the algorithm
    needs a reference model, and averaged weights."""

    shape: ModelShape
    learner: LearnerConfig
    actor: ActorConfig
    reference: bool = False
    averaged: bool = False

    @classmethod
    def of(cls, config: RunConfig) -> Self | None:
        """Makes the estimate for the model in `config`. Returns None if its shape is not known."""
        shape = model_shape(Path(config.model))
        if shape is None:
            return None
        needs = config.algorithm.needs
        known = shape, config.learner, config.actor
        return cls(*known, reference="reference" in needs, averaged="averaged" in needs)

    def learner_needs(self, ranks: int) -> dict[str, float]:
        """Returns the GiB that one rank's model states need, keyed by use."""
        shape, learner = self.shape, self.learner
        stage = zero_stage(learner, bf16=learner.dtype != "float32")
        whole, adapted = shape.parameters / GIB, learner.lora.rank * 20 * shape.width * shape.layers
        trained = min(whole, adapted / GIB) if adapted else whole
        held = whole / ranks if stage == 3 else whole
        gradients = 4 if stage == 3 else 6
        needs = {
            "weights": 0.0 if learner.offload == "all" else 2 * held,
            "gradients": gradients * trained / (ranks if stage >= 2 else 1),
            "optimizer": 12 * trained / (ranks if stage >= 1 else 1),
            "largest layer": 4 * shape.vocabulary * shape.width / GIB if stage == 3 else 0.0,
            "buffer": 2 * BUCKET / GIB if stage == 3 else 0.0,
            "reference": 2 * held if self.reference and not adapted else 0.0,
            "averaged": 4 * trained if self.averaged else 0.0,
        }
        if learner.offload != "none":
            needs |= {"gradients": 0.0, "optimizer": 0.0}
        return {name: gib for name, gib in needs.items() if gib}

    def activations(self) -> float:
        """Returns the GiB that a rank's bfloat16 activations take for its largest micro-batch."""
        shape, tokens = self.shape, self.learner.tokens_per_micro_batch
        kept = 26 * shape.width + 8 * shape.feed_forward
        if self.learner.gradient_checkpointing:
            kept = 2 * shape.width
        return (tokens * shape.layers * kept + 20 * CHUNK * shape.vocabulary) / GIB

    def actor_needs(self, gpus: int, requests: int) -> dict[str, float]:
        """Returns the GiB that an actor needs on each GPU, keyed by use. `requests`: full-length
        requests that the KV cache must hold, if the user set no size."""
        weights = self._actor_bytes * self.shape.parameters / gpus / GIB
        cache = self._given_cache or requests * self._request_gib(gpus)
        return {"weights": weights, "KV": cache, "fixed": FIXED_GIB}

    def requests_held(self, gpus: int, gib: float) -> int:
        """Returns how many requests of full length an actor can hold with `gib` GiB on each GPU."""
        needs = self.actor_needs(gpus, 0)
        cache = self._given_cache or gib - total(needs)
        return max(0, int(cache / self._request_gib(gpus)))

    def _request_gib(self, gpus: int) -> float:
        """Returns the GiB of KV cache that a full-length request takes on each GPU of an actor."""
        heads = max(1, -(-self.shape.kv_heads // gpus))
        a_token = 2 * self._actor_bytes * self.shape.layers * heads * self.shape.head_width
        return a_token * self.actor.max_model_len / GIB

    @property
    def _given_cache(self) -> float:
        """The user's setting for the KV cache, in GiB; 0 if the user left the size to vLLM."""
        return float(self.actor.engine.get("kv_cache_memory_bytes") or 0) / GIB

    @property
    def _actor_bytes(self) -> int:
        return 4 if self.actor.dtype == "float32" else 2


def total(needs: dict[str, float]) -> float:
    """Returns the sum of all needs, in GiB."""
    return sum(needs.values())


def arithmetic(needs: dict[str, float]) -> str:
    """Formats the needs and their sum, such as `14.2 weights + 2.0 fixed = 16.2 GiB`."""
    summands = " + ".join(f"{gib:.1f} {name}" for name, gib in needs.items())
    return f"{summands} = {total(needs):.1f} GiB"


@dataclass(frozen=True)
class Engines:
    """Engines on one GPU. `gib`: memory of one engine. `of_gib`: memory of the GPU. `rank_gib`:
    memory of a rank on the same GPU."""

    count: int
    gib: float
    of_gib: float
    rank_gib: float

    def __str__(self) -> str:
        rank = f", next to a rank of {self.rank_gib:.1f} GiB" if self.rank_gib else ""
        return f"gets {self.gib:.1f} of a GPU's {self.of_gib:.0f} GiB ({self.count} per GPU{rank})"


def share_memory(
    requested: RequestedPlaces,
    machines: Sequence[Machine],
    trained: Set[tuple[str, str]],
    engines: Counter[ActorPlace],
    estimate: MemoryEstimate | None,
    *,
    force: bool,
) -> tuple[dict[ActorPlace, float | None], tuple[str, ...]]:
    """Divides each GPU's memory among its processes. For each place, returns the share of a single
    engine. Also returns the lines that show the estimate. A share is None if the user's setting or
    vLLM's default applies.

    `trained`: machine and GPU of every rank. `engines`: the number of engines at each place. Raises
    UserError if an engine or rank does not fit, unless `force` is set. Also raises UserError if a
    share depends on an unknown size of a GPU or of the model.
    """
    memory = {machine.name: machine.gpu_gib for machine in machines}
    given = estimate.actor.engine.get("gpu_memory_utilization") if estimate else None
    shares: dict[ActorPlace, float | None] = {}
    lines: dict[str, None] = {}
    rank = estimate.learner_needs(requested.ranks) if estimate and trained else {}
    for machine, _ in sorted(trained) if rank and not force else ():
        check_rank_fits(requested, rank, memory[machine])
    if rank and estimate:
        lines[f"each rank: {arithmetic(rank)}, and {_activations(estimate)}"] = None
    for place, count in engines.items():
        with_rank = any((place.machine, gpu) in trained for gpu in place.gpus)
        gib, states = memory[place.machine], total(rank) if with_rank else 0.0
        if given is not None or (count == 1 and not with_rank):
            shares[place] = None
        elif gib is None or (with_rank and not rank):
            what = "the memory of the GPUs" if gib is None else "what the model needs"
            raise UserError(
                f"--actors {requested.actors}: several processes share a GPU, and {what} is not "
                "known; set actor.engine.gpu_memory_utilization"
            )
        else:
            left = max(USABLE * gib - states, gib / 2 if force else 0.0)
            most = min(MOST, left / gib / (count + with_rank))
            shares[place] = int(100 * most) / 100  # rounded down
        if estimate is not None and gib is not None:
            share = shares[place]
            takes = given if given is not None else MOST if share is None else share
            fitted = Engines(count, float(takes) * gib, gib, states)
            if not force:
                check_engine_fits(requested, estimate, fitted)
            lines[_engine_line(requested, estimate, fitted)] = None
    return shares, tuple(lines)


def _activations(estimate: MemoryEstimate) -> str:
    """Describes a rank's activations. Their size is not known if learner.dtype is float32."""
    if estimate.learner.dtype == "float32":
        return "activations"
    tokens = estimate.learner.tokens_per_micro_batch
    return f"{estimate.activations():.1f} GiB of activations for {tokens} tokens"


def check_rank_fits(requested: RequestedPlaces, needs: dict[str, float], gib: float | None) -> None:
    """Refuses a rank whose model states do not fit into a GPU. The error shows the arithmetic."""
    if gib is not None and total(needs) > USABLE * gib:
        remedy = "set learner.zero_stage=3, add ranks, or take larger GPUs or a smaller model"
        if max(needs, key=lambda name: needs[name]) in ("gradients", "optimizer"):
            remedy = "raise learner.zero_stage, add ranks, or set learner.offload"
        raise UserError(
            f"--learner {requested.learner}: a rank needs {arithmetic(needs)} plus activations, "
            f"but can use only {USABLE:.0%} of a GPU's {gib:.0f} GiB; {remedy}"
        )


def check_engine_fits(
    requested: RequestedPlaces, estimate: MemoryEstimate, engines: Engines
) -> None:
    """Refuses engines that have no room for one request, or that take more than their GPU has."""
    least = estimate.actor_needs(requested.actor_gpus, 1)
    used = engines.count * engines.gib + engines.rank_gib
    if total(least) > engines.gib or used > USABLE * engines.of_gib + 0.01:
        rank = ", or a higher learner.zero_stage" if engines.rank_gib else ""
        raise UserError(
            f"--actors {requested.actors}: an actor needs {arithmetic(least)} for one request, "
            f"but {engines}; give fewer --actors or more --actor-gpus{rank}"
        )


def _engine_line(requested: RequestedPlaces, estimate: MemoryEstimate, engines: Engines) -> str:
    """Compares an engine's need with its share, in one line."""
    gpus, wants = requested.actor_gpus, estimate.actor.concurrent_requests
    held = min(wants, estimate.requests_held(gpus, engines.gib))
    return (
        f"each actor: {arithmetic(estimate.actor_needs(gpus, held))} for {held} of {wants} "
        f"requests of {estimate.actor.max_model_len} tokens; {engines}"
    )
