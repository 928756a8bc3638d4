"""Judges a sample of attempts again, to see whether their grader agrees with itself.

newest groups ─► their attempts, judged again ─► share of other rewards, with its interval

Nothing is written.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from envs.isolation.pool import environments_of_all
from learner.evaluation.metrics import wilson
from learner.offline.regrade import AT_ONCE, Regrader, Tally, check_can_judge
from r3l.errors import UserError
from r3l.records import Group, Trajectory
from r3l.run.config import RunConfig

DISAGREES = 0.1
"""The least difference of two rewards that disagree, as a share of a full success."""
MOST = 0.05
"""Share of rewards that may disagree."""
TIMEOUT_S = 600.0


@dataclass
class Sample:
    """Attempts that were judged again. `changed`: those whose reward changed, as (group id, slot,
    reward before, reward after). `left_out`: how many could not be judged, and why."""

    judged: int = 0
    changed: list[tuple[str, int, float, float]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval (Wilson's) of the share of rewards that disagree."""
        return wilson([1.0] * len(self.changed) + [0.0] * (self.judged - len(self.changed)))

    @property
    def disagrees(self) -> bool:
        """Whether more than MOST of the rewards disagree, chance excluded."""
        return self.judged > 0 and self.interval[0] > MOST


def regrade_sample(groups: Sequence[Group], config: RunConfig) -> Sample:
    """Judges all attempts of some groups again, with the settings of their run. Raises UserError if
    the settings cannot judge, or if it takes longer than TIMEOUT_S seconds."""
    check_can_judge(config)
    try:
        return asyncio.run(_sample(groups, config))
    except TimeoutError:
        raise UserError(
            f"{len(groups)} groups could not be judged again within {TIMEOUT_S:g} s; give fewer"
        ) from None


async def _sample(groups: Sequence[Group], config: RunConfig) -> Sample:
    sample, regrader = Sample(), Regrader(config, Tally(""))
    async with (
        asyncio.timeout(TIMEOUT_S),
        environments_of_all(config.env, wanted=AT_ONCE) as make_env,
    ):
        again = await regrader.judge(groups, make_env)
    for group, new in zip(groups, again, strict=True):
        for before, after in zip(group.results, new.results, strict=True):
            if before.trajectory is not None and after.trajectory is not None:
                sample.judged += 1
                if _disagree(before.trajectory, after.trajectory):
                    rewards = before.trajectory.reward, after.trajectory.reward
                    sample.changed.append((group.group_id, before.slot, *rewards))
    sample.left_out = regrader.tally.failures()
    return sample


def _disagree(before: Trajectory, after: Trajectory) -> bool:
    return abs(before.reward - after.reward) >= DISAGREES
