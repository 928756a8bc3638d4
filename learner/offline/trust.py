"""The trust meter of offline training: for how long the stored data say something about the policy.

The data were sampled by other policies, and no new ones come. As the policy moves away from them,
their weighted attempts speak of ever fewer tokens: the effective sample size of the importance
ratios falls and the KL to the sampling policies grows (learner.metrics.drift). From the first of
STEPS steps in a row beyond a limit the data no longer support what is learned from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

LEAST_ESS = 0.3
"""Effective sample size, share of the tokens; below it the data are not trusted."""
MOST_KL = 0.5
"""KL to the sampling policies, nats a token; above it the data are not trusted."""
STEPS = 3


@dataclass
class TrustMeter:
    """What was measured so far. `lost_at`: the first step from which the data no longer support the
    policy, −1 if they do. `ess`, `kl`: of the first and of the last step."""

    lost_at: int = -1
    first_ess: float = 1.0
    first_kl: float = 0.0
    ess: float = 1.0
    kl: float = 0.0
    beyond: int = 0
    steps: int = 0

    def check(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Take in the metrics of a step; True if trust is lost with it.

        Measured on base attempts if there are any: distilled ones were sampled under guidance that
        their rows leave out.
        """
        end = "_base" if "learner/behaviour_ess_base" in metrics else ""
        if f"learner/behaviour_ess{end}" not in metrics:
            return False
        self.ess, self.kl = (metrics[f"learner/behaviour_{name}{end}"] for name in ("ess", "kl"))
        if not self.steps:
            self.first_ess, self.first_kl = self.ess, self.kl
        self.steps += 1
        supported = self.ess >= LEAST_ESS and self.kl <= MOST_KL
        self.beyond = 0 if supported else self.beyond + 1
        if self.beyond < STEPS or self.lost_at >= 0:
            return False
        self.lost_at = step - STEPS + 1
        return True

    def verdict(self) -> str:
        """One line for people."""
        measured = (
            f"effective sample size {self.first_ess:.2f} at first, {self.ess:.2f} at last; KL to "
            f"the sampling policies {self.first_kl:.3g} and {self.kl:.3g} nats a token"
        )
        if self.lost_at < 0:
            return f"trust: the data support every step ({measured})"
        return (
            f"trust: from step {self.lost_at} on the data no longer support what is learned "
            f"({measured}); use a checkpoint before it, or collect new groups"
        )

    def facts(self) -> dict[str, float]:
        """The numbers, for a file."""
        return asdict(self)
