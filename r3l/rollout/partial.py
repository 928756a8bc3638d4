"""Saves attempts during play, so that a killed actor loses little.

an attempt makes a step ─► progress_s of sampling since the last save? ─► save ─► buffer
another actor leases the group ─► find ─► replay the environment to the last saved step ─► play

A partial result is the slot's result so far:

    base slot          done: the attempt up to a complete step, without a finish
    before the retry   not_triggered: the reflection, and its conversation as an auxiliary sample
    during the retry   done: also the retry, and a second sample with what the policy saw
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from r3l.errors import RecordError, ReplayDiverged
from r3l.records import AuxSample, Role, SlotResult, Task
from r3l.rollout.attempt import Attempt, Tokens, branch
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_interface import Environment

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """Saves and finds partial results of a group. `found`: partial results from earlier actors.
    `every_s`: seconds of sampling between saves. `counts`: events for the metrics."""

    found: Sequence[SlotResult] = ()
    save: Callable[[SlotResult], Awaitable[None]] | None = None
    every_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def find(self, role: Role, slot: int) -> SlotResult | None:
        """Returns the partial result that an earlier actor left for a slot, or None."""
        return next((r for r in self.found if (r.role, r.slot) == (role, slot)), None)

    async def resume(
        self, role: Role, slot: int, task: Task, chat: ChatFormat, env: Environment, heat: float
    ) -> Attempt | None:
        """Rebuilds the attempt that an earlier actor left. Returns None if no attempt can be
        rebuilt. `heat`: the temperature. Raises EnvironmentFailed."""
        left = self.find(role, slot)
        if left is None or left.trajectory is None:
            return None
        try:
            if (left.trajectory.system, left.trajectory.temperature) != (
                env.spec.system_prompt, heat,
            ):  # fmt: skip
                raise ReplayDiverged("its settings have changed", cause="replay_diverged")
            attempt = await branch(left.trajectory, left.trajectory.num_steps, task, chat, env)
        except ReplayDiverged as error:
            self.counts["dropped"] += 1
            log.warning("a partial attempt is dropped, and its slot played afresh: %s", error)
            return None
        self.counts["continued"] += 1
        self.counts["tokens"] += left.trajectory.generated_tokens
        attempt.faults += left.trajectory.faults
        attempt.reward_parts |= left.trajectory.extra.reward_parts
        for shown in left.aux[1:]:
            attempt.shown = conversation(shown)
        return attempt

    def saving(
        self, attempt: Attempt, env: Environment, result: Callable[[], SlotResult]
    ) -> Callable[[], Awaitable[None]]:
        """Returns a function to await after each step. In a replayable environment, the function
        saves `result()` when a save is due."""
        saved = sum(attempt.seconds)

        async def after_step() -> None:
            nonlocal saved
            sampled = sum(attempt.seconds)
            if env.spec.deterministic != "no" and await self.offer(result, sampled - saved):
                saved = sampled

        return after_step

    async def offer(self, result: Callable[[], SlotResult], seconds: float) -> bool:
        """If the sampling time `seconds` is at least `every_s`, saves `result()`. An invalid record
        is only counted. Returns whether a record was saved."""
        if self.save is None or seconds < self.every_s:
            return False
        try:
            made = result()
        except RecordError as error:
            self.counts["refused"] += 1
            log.debug("progress was not saved: %s", error)  # counted; it comes often
            return False
        await self.save(made)
        return True


def conversation(sample: AuxSample) -> Tokens:
    """Returns the tokens of an auxiliary sample. Sets the unknown log-probabilities to 0."""
    ids = sample.token_ids.tolist()
    return Tokens(ids, sample.response_mask.tolist(), [0.0] * len(ids))
