"""Reflect, then retry: the exploration that R³L and its baselines share.

For every pair of a slot and its retry's slot, all pairs at the same time:

    attempt ─► reflection ─► triggers a retry? ── no ─► the retry's slot is skipped
                                     │ yes
                                     ▼
        the attempt again from its pivot, with the guidance shown

Each step is a method, for a subclass to replace: question, triggers, pivot_of, guidance_of.
"""

from typing import Any

from r3l.algorithms.shared.ratio_correction import RatioAlgorithm
from r3l.errors import EpisodeError, ReflectionError
from r3l.records import ReflectionRecord, Trajectory
from r3l.rollout import reflection
from r3l.rollout.exploration import Exploration, Question, Verdict
from r3l.rollout.prompts import Prompts


class ReflectAndRetry(RatioAlgorithm):
    """The base of algorithms that reflect on attempts and retry them."""

    def pairs(self, slots: int) -> list[tuple[int, int]]:
        """Returns (slot, slot of its retry) for a group of `slots` slots; -1: it gets no retry."""
        bases = slots - slots // 2
        return [(i, bases + i if bases + i < slots else -1) for i in range(bases)]

    async def explore(self, x: Exploration) -> None:
        retry_of = dict(self.pairs(x.plan.slots))

        async def explore_pair(slot: int) -> None:
            base = await x.play(slot, retried=retry_of[slot] >= 0)
            if retry_of[slot] >= 0:
                await self.reflect_and_retry(x, slot, base, retry_of[slot])

        await x.each(retry_of, explore_pair)

    async def reflect_and_retry(
        self, x: Exploration, slot: int, base: Trajectory | None, retry: int
    ) -> None:
        """Resolves the slot `retry`, which may retry `base`, the attempt in `slot`."""
        if base is None:
            await x.fail(retry, "no_base", of=slot)
            return
        if not self.reflects_on(base):
            await x.skip(retry, "not_reflected", of=slot)
            return
        try:
            prompts = await x.prompts()
            thought = await x.ask(
                f"reflect-{slot}",
                self.question(base, prompts),
                of=slot,
                schema=self.answer_schema(base),
                read=lambda text, complete: self.read(text, complete, base),
            )
        except EpisodeError as error:
            await x.fail(retry, error, of=slot)
            return
        if not self.triggers(thought, base):
            await x.skip(retry, "not_triggered", of=slot)
            return
        await x.retry(
            retry,
            of=slot,
            pivot=self.pivot_of(thought, base),
            guidance=self.guidance_of(thought, base, prompts),
            reflection=thought.name,
        )

    def reflects_on(self, base: Trajectory) -> bool:
        """Whether an attempt gets a reflection."""
        return True

    def question(self, base: Trajectory, prompts: Prompts) -> Question:
        """Returns the question about an attempt, as (system, user) messages."""
        return prompts.question("reflect", base)

    def answer_schema(self, base: Trajectory) -> dict[str, Any] | None:
        """Returns the JSON schema of an answer, or None for free text."""
        return reflection.json_schema(base.num_steps)

    def read(self, text: str, complete: bool, base: Trajectory) -> Verdict:
        """Reads an answer."""
        try:
            parsed = reflection.parse(text, base.num_steps, truncated=not complete)
        except ReflectionError as error:
            return Verdict(cause=error.cause)
        named = parsed.retry_from_step
        return Verdict(outcome=parsed.trajectory_outcome, pivot=-1 if named is None else named)

    def triggers(self, thought: ReflectionRecord, base: Trajectory) -> bool:
        """Whether a reflection calls for a retry."""
        if thought.cause:
            return False
        return reflection.parse(thought.text, base.num_steps).triggers_retry(base.num_steps)

    def pivot_of(self, thought: ReflectionRecord, base: Trajectory) -> int:
        """Returns the step to retry from."""
        return thought.pivot

    def guidance_of(self, thought: ReflectionRecord, base: Trajectory, prompts: Prompts) -> str:
        """Returns the text that the policy reads while it retries."""
        return prompts.guidance(reflection.parse(thought.text, base.num_steps))
