"""Checks that the processes on each GPU fit into its memory, and gives each actor its share.

A rank gets what its model states need. The rest is split into equal parts: one for each actor on
the GPU, and one for the rank's activations. An actor that shares no GPU gets vLLM's default, 90 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from launch.topology.machines import ActorPlace, Machine, RequestedPlaces
from launch.topology.memory_estimate import Estimate, arithmetic, total
from r3l.errors import UserError

USABLE = 0.95  # of a GPU's memory; the rest is for the driver and fragmentation
MOST = 0.9  # of a GPU's memory for one engine, vLLM's own default


@dataclass(frozen=True)
class Engines:
    """`count` engines on one GPU of `of_gib`, each with `gib`, next to a rank of `rank_gib`."""

    count: int
    gib: float
    of_gib: float
    rank_gib: float

    def __str__(self) -> str:
        rank = f" next to a rank of {self.rank_gib:.1f} GiB" if self.rank_gib else ""
        return f"{self.count} on each GPU of {self.of_gib:.0f} GiB{rank} get {self.gib:.1f} GiB"


def share_memory(
    requested: RequestedPlaces,
    machines: Sequence[Machine],
    trained: AbstractSet[tuple[str, str]],
    engines: Counter[ActorPlace],
    estimate: Estimate | None,
    *,
    force: bool,
) -> tuple[dict[ActorPlace, float | None], tuple[str, ...]]:
    """Shares the memory of each GPU. Returns an engine's share at each place (None: vLLM's
    default), and the estimate as lines.

    `trained`: machine and GPU of every rank. `engines`: the number of engines at each place. Raises
    UserError if an engine or rank does not fit, unless `force` is set. It is also raised with
    `force` if several processes share a GPU of unknown memory.
    """
    memory = {machine.name: machine.gpu_gib for machine in machines}
    given = estimate.actor.engine.get("gpu_memory_utilization") if estimate else None
    shares: dict[ActorPlace, float | None] = {}
    lines: dict[str, None] = {}
    rank = estimate.learner_parts(requested.ranks) if estimate and trained else {}
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
            shares[place] = _equal_part(left / gib, count + with_rank)
        if estimate is not None and gib is not None:
            share = shares[place]
            takes = given if given is not None else MOST if share is None else share
            fitted = Engines(count, float(takes) * gib, gib, states)
            if not force:
                check_engine_fits(requested, estimate, fitted)
            lines[_engine_line(requested, estimate, fitted)] = None
    return shares, tuple(lines)


def _activations(estimate: Estimate) -> str:
    """Describes the activations of a rank; their size is estimated in bfloat16 only."""
    if estimate.learner.dtype == "float32":
        return "activations"
    tokens = estimate.learner.tokens_per_micro_batch
    return f"{estimate.activations():.1f} GiB of activations for {tokens} tokens"


def _equal_part(left: float, processes: int) -> float:
    """Splits `left`, a share of a GPU's memory, among `processes`; rounds down to hundredths."""
    return int(100 * min(MOST, left / processes)) / 100


def check_rank_fits(requested: RequestedPlaces, parts: dict[str, float], gib: float | None) -> None:
    """Refuses a rank whose model states do not fit into a GPU, and shows the arithmetic."""
    if gib is not None and total(parts) > USABLE * gib:
        raise UserError(
            f"--learner {requested.learner}: a rank needs {arithmetic(parts)} plus activations, "
            f"but can use only {USABLE:.0%} of a GPU's {gib:.0f} GiB; {_smaller_rank(parts)}"
        )


def _smaller_rank(parts: dict[str, float]) -> str:
    """Returns advice for a rank whose model states are too large."""
    if max(parts, key=lambda name: parts[name]) in ("gradients", "optimizer"):
        return "raise learner.zero_stage, add ranks, or set learner.offload"
    return "set learner.zero_stage=3, add ranks, or take larger GPUs or a smaller model"


def check_engine_fits(requested: RequestedPlaces, estimate: Estimate, engines: Engines) -> None:
    """Refuses an engine that has no room for one request, and shows the arithmetic."""
    least = estimate.actor_parts(requested.actor_gpus, 1)
    used = engines.count * engines.gib + engines.rank_gib
    if total(least) > engines.gib or used > USABLE * engines.of_gib + 0.01:
        rank = ", or a higher learner.zero_stage" if engines.rank_gib else ""
        raise UserError(
            f"--actors {requested.actors}: an actor needs {arithmetic(least)} for one request, "
            f"{engines}; give fewer --actors or more --actor-gpus{rank}"
        )


def _engine_line(requested: RequestedPlaces, estimate: Estimate, engines: Engines) -> str:
    """Compares an engine's need with its share, in one line."""
    gpus, wants = requested.actor_gpus, estimate.actor.concurrent_requests
    held = min(wants, estimate.requests_held(gpus, engines.gib))
    return (
        f"each actor: {arithmetic(estimate.actor_parts(gpus, held))} for {held} of {wants} "
        f"requests of {estimate.actor.max_model_len} tokens; {engines}"
    )
