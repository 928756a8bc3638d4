"""What the groups of a step did to it: the step without one of them, and shares of its gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from buffer import Draw
from learner.offline import trainer_snapshot as snapshot
from learner.offline.replayed_run import ReplayedRun, without
from r3l.errors import UserError
from r3l.records import Group


@dataclass(frozen=True)
class Effect:
    """A step with all of its groups and without one of them.

    `moved`, `moved_without`: norms of the weights' changes; `difference`: norm of their difference;
    `cosine`: between the two changes; `along`: between the difference and the whole change.
    """

    loss: float
    loss_without: float
    moved: float
    moved_without: float
    difference: float
    cosine: float
    along: float

    def lines(self, group_id: str) -> list[str]:
        """For people."""
        share = self.difference / self.moved if self.moved else 0.0
        return [
            f"without {group_id}: loss {self.loss_without:.9g} ({self.loss:.9g} with it)",
            f"  weights move by {self.moved_without:.6g} ({self.moved:.6g} with it), cosine "
            f"{self.cosine:.6f}",
            f"  what it did to the weights: norm {self.difference:.6g} ({share:.1%} of the step), "
            f"cosine with the step {self.along:+.4f}",
        ]


@dataclass(frozen=True)
class Blame:
    """A group's part in the gradient of its step. `share`: g·G / G·G, which sum to 1 over the
    groups; `cosine` of g and G; `norm` of g."""

    group: Group
    share: float
    cosine: float
    norm: float


def effect_of(replayed: ReplayedRun, group_id: str) -> Effect:
    """Try the next step with all of its groups and without one; the trainer is then as before."""
    draw = replayed.draw_of(replayed.version + 1)
    less = without(draw, group_id)
    if not less.groups:
        raise UserError(f"--without {group_id}: it is the only group of the step")
    before = snapshot.take(replayed.trainer)
    start = snapshot.flat_weights(replayed.trainer)
    found = []
    for one in (draw, less):
        result = replayed.trainer.step(replayed.rows(one))
        moved = snapshot.flat_weights(replayed.trainer) - start
        found.append((result.metrics["learner/loss"], moved.double()))
        snapshot.restore(replayed.trainer, before)
    (loss, whole), (loss_without, rest) = found
    difference = whole - rest
    return Effect(
        loss,
        loss_without,
        float(whole.norm()),
        float(rest.norm()),
        float(difference.norm()),
        _cosine(whole, rest),
        _cosine(difference, whole),
    )


def blame(replayed: ReplayedRun) -> list[Blame]:
    """The groups of the next step, the largest dot product with the step's gradient first.

    The gradient is that of the step's loss before clipping, at the weights before the step; a
    group's is that of its own terms, so that the sum over the groups is the step's. The trainer
    stays as it is.
    """
    snapshot.check_not_sharded(replayed.trainer)
    draw = replayed.draw_of(replayed.version + 1)
    whole = replayed.trainer.gradient(replayed.rows(draw)).double()
    square = float(whole @ whole)
    found = []
    for place, group in enumerate(draw.groups):
        rows = [row for row in replayed.rows(_alone(draw, place)) if row.weight]
        own = replayed.trainer.gradient(rows).double()
        dot = float(own @ whole)
        share = dot / square if square else 0.0
        found.append(Blame(group, share, _cosine(own, whole), float(own.norm())))
    return sorted(found, key=lambda one: -one.share)


def _alone(draw: Draw, place: int) -> Draw:
    """A draw in which the other groups count in the step's means, but weigh nothing."""
    weights = draw.weights or (1.0,) * len(draw.groups)
    return replace(draw, weights=tuple(w if i == place else 0.0 for i, w in enumerate(weights)))


def _cosine(one: Tensor, other: Tensor) -> float:
    """The cosine of two vectors; 0 if one is zero."""
    norms = float(one.norm()) * float(other.norm())
    return float(one @ other) / norms if norms else 0.0
