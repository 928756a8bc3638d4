"""Saves attempts during play, so that a killed actor loses little.

an attempt makes a step ─► progress_s of sampling since the last save? ─► save ─► buffer
another actor leases the group ─► find ─► replay the environment to the last saved step ─► play

A partial result is the slot's result so far: the attempt up to a complete step, without a finish.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from r3l.errors import EnvironmentFailed, ReplayDiverged
from r3l.notices import notice_again
from r3l.records import SlotResult, Task
from r3l.rollout.attempt import Attempt, branch
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_interface import Environment

log = logging.getLogger(__name__)

NEW = {"of": -1, "pivot": -1, "origin": None, "reflection": ""}
"""What an attempt that retries nothing says of itself: the fields of a Trajectory."""


@dataclass
class Progress:
    """Saves and finds partial results of a group. `found`: partial results from earlier actors.
    `every_s`: seconds of sampling between saves. `counts`: events for the metrics."""

    found: Sequence[SlotResult] = ()
    save: Callable[[SlotResult], Awaitable[None]] | None = None
    every_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def find(self, slot: int) -> SlotResult | None:
        """Returns the partial result that an earlier actor left for a slot, or None."""
        return next((result for result in self.found if result.slot == slot), None)

    async def resume(
        self,
        slot: int,
        task: Task,
        chat: ChatFormat,
        env: Environment,
        heat: float,
        of: Mapping[str, Any],
    ) -> Attempt | None:
        """Rebuilds the attempt that an earlier actor left. Returns None if no attempt can be
        rebuilt. `heat`: the temperature. `of`: `Retry.fields`, empty for a new attempt. Raises
        EnvironmentFailed."""
        left = self.find(slot)
        if left is None or left.trajectory is None:
            return None
        found = left.trajectory
        try:
            if (found.system, found.temperature) != (env.spec.system_prompt, heat):
                raise ReplayDiverged("its settings have changed", cause="replay_diverged")
            if {name: getattr(found, name) for name in NEW} != {**NEW, **of}:
                raise ReplayDiverged("it retries another attempt", cause="replay_diverged")
            attempt = await branch(found, found.num_steps, task, chat, env)
        except ReplayDiverged as error:
            self.counts["dropped"] += 1
            log.warning("a partial attempt is dropped, and its slot played afresh: %s", error)
            return None
        self.counts["continued"] += 1
        self.counts["tokens"] += found.generated_tokens
        attempt.faults += found.faults
        attempt.reward_parts |= found.extra.reward_parts
        attempt.shown = found.shown
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
        """If the sampling time `seconds` is at least `every_s`, saves `result()`. Progress that
        cannot be recorded is counted and not saved. Returns whether a record was saved. Raises
        EnvironmentFailed if nothing was played yet, and the errors of `save`."""
        if self.save is None or seconds < self.every_s:
            return False
        try:
            made = result()
        except EnvironmentFailed:
            raise
        except Exception as error:  # whatever is wrong with it, the attempt goes on
            self.counts["refused"] += 1
            if notice_again("progress", f"progress of an attempt cannot be recorded: {error!r}"):
                log.warning("progress of an attempt cannot be recorded", exc_info=error)
            return False
        await self.save(made)
        return True
