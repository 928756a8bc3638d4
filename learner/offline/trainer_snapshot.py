"""The state of a trainer in memory, to go back to after a step that was only tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learner.step.optimizer_state import masters, torch_optimizer
from learner.step.trainer import Trainer
from r3l.errors import UserError


@dataclass(frozen=True)
class Snapshot:
    """Copies of the parameters, of the full-precision weights, and of what the optimizer keeps of
    each tensor; how many updates the schedule has seen, and the random generator."""

    weights: list[Tensor]
    masters: list[Tensor]
    optimizer: dict[Tensor, dict[str, Any]]
    rates: list[float]
    updates: int
    generator: Tensor


def take(trainer: Trainer) -> Snapshot:
    """A copy of a trainer's state. Raises UserError under ZeRO 3: parameters are in pieces."""
    check_not_sharded(trainer)
    inner = torch_optimizer(trainer)
    return Snapshot(
        [parameter.detach().clone() for parameter in trainer.module.parameters()],
        [master.detach().clone() for master in masters(trainer)],
        {tensor: _copied(state) for tensor, state in inner.state.items()},
        [group["lr"] for group in inner.param_groups],
        trainer.schedule.last_epoch,
        torch.get_rng_state(),
    )


def restore(trainer: Trainer, snapshot: Snapshot) -> None:
    """Go back to a snapshot, which stays as it is."""
    inner = torch_optimizer(trainer)
    with torch.no_grad():
        held = [*trainer.module.parameters(), *masters(trainer)]
        for tensor, copy in zip(held, [*snapshot.weights, *snapshot.masters], strict=True):
            tensor.copy_(copy)
    for tensor in list(inner.state):
        state = _copied(snapshot.optimizer.get(tensor, {}))
        if state:
            inner.state[tensor] = state
        else:
            del inner.state[tensor]
    trainer.schedule.last_epoch = snapshot.updates
    for group, rate in zip(inner.param_groups, snapshot.rates, strict=True):
        group["lr"] = rate
    torch.set_rng_state(snapshot.generator)


def flat_weights(trainer: Trainer) -> Tensor:
    """All trained weights end to end, float32 [P] on the host, in full precision if the optimizer
    keeps them so."""
    trained = [p for p in trainer.module.parameters() if p.requires_grad]
    found = masters(trainer) or trained
    return torch.cat([tensor.detach().float().cpu().flatten() for tensor in found])


def check_not_sharded(trainer: Trainer) -> None:
    """Raise UserError under ZeRO 3."""
    if trainer.stage == 3:
        raise UserError(
            "learner.zero_stage 3: parameters are sharded, and steps cannot be tried; only "
            "`replay` without --without works"
        )


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()
    }
