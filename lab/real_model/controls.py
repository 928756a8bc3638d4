"""Two controls of runs in the workshop: another task's advice, and the right answers.

Both are algorithms of r3l-launch, in which the world's teacher answers in the policy's place
(lab.results.taught), as in the cells of the regime map. No policy of r3l needs them.
"""

from collections.abc import Sequence
from dataclasses import replace

from envs.demonstrations import demonstrating
from lab.results.taught import Guidance, Taught
from r3l.algorithms.published.raft import RAFT
from r3l.algorithms.r3l import R3L
from r3l.rollout.exploration import Exploration
from r3l.rollout.policy_interface import Sample, SampleParams

WORLD = "workshop"
"""The world that has this teacher. A rehearsal's made-up world has none, and is played plainly."""


class AnothersAdvice(R3L):
    """R³L whose reflections the teacher writes: right outcome and pivot, and the advice that
    another task needs."""

    async def explore(self, x: Exploration) -> None:
        teach(x, "another")
        await super().explore(x)


class Supervised(RAFT):
    """Imitates a demonstrator, who plays every attempt right. Its groups have one attempt."""

    async def explore(self, x: Exploration) -> None:
        teach(x, "demonstrated")
        await super().explore(x)


def teach(x: Exploration, guidance: Guidance) -> None:
    """Lets the teacher of x's world answer in place of its policy."""
    if x.task.env == WORLD:
        x.policy = TaughtNow(x.policy, x.task, demonstrating(WORLD), guidance)


class TaughtNow(Taught):
    """A taught policy whose replies have the version of the engine's weights: what an old version
    sampled is not trained on."""

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """The policy's response, or the teacher's reply with log-probabilities of 0."""
        sampled = self.guidance != "demonstrated" and params.json_schema is None
        made = await super().sample(token_ids, params)
        now = int(getattr(self.policy, "version", 0))
        return made if sampled else replace(made, version=now, newest_version=now)
