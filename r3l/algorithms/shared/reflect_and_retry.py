"""Reflect, then retry: the exploration that R³L and its baselines share.

For every attempt, all attempts at the same time:

    attempt ─► reflection ─► triggers a retry? ── no ─► the slots of its retries are skipped
                                     │ yes
                                     ▼
        the attempt again from a pivot, with the guidance shown

Each step is a method, for a subclass to replace: retries, question, triggers, pivot_of or
pivots_of, guidance_of.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from r3l.algorithms.shared.ratio_correction import RatioAlgorithm
from r3l.errors import EpisodeError, PlanError, ReflectionError
from r3l.records import Group, ReflectionRecord, Trajectory
from r3l.rollout import reflection
from r3l.rollout.exploration import Exploration, Question, Verdict
from r3l.rollout.prompts import GuidanceText, Prompts


class ReflectAndRetry(RatioAlgorithm):
    """The base of algorithms that reflect on attempts and retry them."""

    guidance_text: GuidanceText = Field(
        "report",
        description="what a retry is shown of its reflection: the whole report, as in the paper, "
        "or the environment's shorter advice; a free-text critique has a text of its own",
    )

    def retries(self, slots: int) -> Mapping[int, Sequence[int]]:
        """Returns the slots of each attempt's retries, in a group of `slots` slots. By default each
        attempt in the first half of the slots may get one."""
        attempts = slots - slots // 2
        return {i: range(attempts + i, slots)[:1] for i in range(attempts)}

    async def explore(self, x: Exploration) -> None:
        retries = self.retries(x.plan.slots)

        async def explore_one(slot: int) -> None:
            again = retries[slot]
            base = await x.play(slot, retried=len(again) > 0)
            if again:
                await self.reflect_and_retry(x, slot, base, again)

        await x.each(retries, explore_one)

    async def reflect_and_retry(
        self, x: Exploration, slot: int, base: Trajectory | None, again: Sequence[int]
    ) -> None:
        """Resolves the slots `again`. They retry `base`, the attempt in `slot`, if there is one and
        a reflection on it calls for a retry. Otherwise they stay without an attempt."""
        if base is None:
            for retry in again:
                await x.fail(retry, "no_base", of=slot)
            return
        thought = await self.thought_about(x, base, again)
        if thought is None:
            return
        prompts, pivots = await x.prompts(), self.pivots_of(thought, base, len(again))
        if len(pivots) != len(again):
            raise PlanError(f"pivots_of returned {pivots}; return {len(again)} steps")
        pivot_of_slot = dict(zip(again, pivots, strict=True))

        async def play(retry: int) -> None:
            await x.retry(
                retry,
                of=slot,
                pivot=pivot_of_slot[retry],
                guidance=self.guidance_of(thought, base, prompts),
                reflection=thought.name,
            )

        await x.each(again, play)

    async def thought_about(
        self, x: Exploration, base: Trajectory, again: Sequence[int]
    ) -> ReflectionRecord | None:
        """Asks for a reflection on an attempt. If the reflection calls for no retry, resolves the
        slots `again` without one and returns None."""
        slot, why = int(base.slot), "not_reflected"
        if self.reflects_on(base):
            try:
                thought = await x.ask(
                    f"reflect-{slot}",
                    self.question(base, await x.prompts()),
                    of=slot,
                    schema=self.answer_schema(base),
                    read=lambda text, complete: self.read(text, complete, base),
                )
            except EpisodeError as error:
                for retry in again:
                    await x.fail(retry, error, of=slot)
                return None
            if self.triggers(thought, base):
                return thought
            why = "not_triggered"
        for retry in again:
            await x.skip(retry, why, of=slot)
        return None

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

    def pivots_of(self, thought: ReflectionRecord, base: Trajectory, count: int) -> Sequence[int]:
        """Returns the steps to retry from, one for each of `count` retries."""
        return [self.pivot_of(thought, base)] * count

    def guidance_of(self, thought: ReflectionRecord, base: Trajectory, prompts: Prompts) -> str:
        """Returns the text that the policy reads while it retries."""
        parsed = reflection.parse(thought.text, base.num_steps)
        return prompts.guidance(parsed, self.guidance_text)

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Adds the share of groups that have no slot for a retry."""
        plain = [all(result.of < 0 for result in group.results) for group in groups]
        share = {"group/without_retries": sum(plain) / len(plain)} if plain else {}
        return super().metrics(groups) | share
