"""Re-reading: the policy that has read the advice scores the attempt that it made without it.

    explore    N attempts; each failure gets a reflection, and no retry
    queries    log π_g(y_t | x, advice, y_<t) of the teacher, log π(y_t | x, y_<t) of the policy
    gaps       A_t = log π_g(y_t) − log π(y_t), in nats: what the advice would have said instead

The advice stands where a retry reads it: before the step that the reflection names. A_t is 0 at
earlier steps, and in attempts without advice. Nothing of it has a gradient.

An attempt that is too long with its advice is not read again; `count_left_out` counts it.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from pydantic import Field

from r3l.algorithms.advantages import Float64
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch, Source
from r3l.algorithms.queries import Query, Weights, answer_of, key_of
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.errors import ReflectionError
from r3l.records import SUCCESS, Bool, Group, Int32, ReflectionRecord, Trajectory
from r3l.rollout import reflection
from r3l.rollout.exploration import Exploration
from r3l.rollout.prompts import GuidanceText, Prompts

TEACHER, OWN = "teacher", "own"
"""What is asked: an attempt with the advice, and the same tokens without."""
READINGS = "readings"
"""The name of the readings in a batch's memo."""


class Reading(NamedTuple):
    """An attempt that is read again. `token_ids` int32 [M]: with the advice. `mask` bool [M]: the
    responses that are scored. `own_mask` bool [L]: the same responses in the original attempt."""

    source: Source
    token_ids: Int32
    mask: Bool
    own_mask: Bool


class ReReading(ReflectAndRetry):
    """The base of algorithms whose teacher is the policy that has read the advice."""

    teacher: Weights = Field(
        "averaged",
        description="weights of the teacher: a running average of the trained ones, the reference "
        "model, or the current ones",
    )
    average_decay: float = Field(
        0.95, ge=0, lt=1, description="decay of the teacher's running average, of a step"
    )
    advice: str = Field(
        "",
        description="what the teacher reads, with the fields of a reflection in braces, such as "
        "'advice: {improvement_suggestion}.'; empty: the prompt of guidance_text. An environment's "
        "own prompt is not known to the learner",
    )
    reading_limit: int = Field(
        4096,
        ge=1,
        description="tokens; an attempt that has more with its advice is not read again",
    )

    @property
    def base_attempts(self) -> int:
        return self.group_size

    @property
    def needs(self) -> tuple[Weights, ...]:
        own = () if self.teacher == "current" else (self.teacher,)
        return tuple(dict.fromkeys((*super().needs, *own)))

    # ── the actor ───────────────────────────────────────────────────────────────────────

    async def explore(self, x: Exploration) -> None:
        """Plays N attempts, and asks for a reflection on each failure."""

        async def play(slot: int) -> None:
            if (base := await x.play(slot)) is not None:
                await self.thought_about(x, base, ())

        await x.each(range(x.plan.slots), play)

    def reflects_on(self, base: Trajectory) -> bool:
        return base.reward < SUCCESS

    # ── the learner ─────────────────────────────────────────────────────────────────────

    def queries(self, batch: Batch) -> Sequence[Query]:
        """Asks the teacher and the policy for the log-probabilities of the attempts with advice."""
        return [*super().queries(batch), *self.asked(batch)]

    def asked(self, batch: Batch) -> Iterator[Query]:
        """Yields the two queries about each attempt that is read again."""
        for each in self.readings(batch):
            attempt = each.source.attempt
            teacher, own = (key_of(what, each.source) for what in (TEACHER, OWN))
            heat = attempt.temperature or 1.0
            yield Query(teacher, each.token_ids, each.mask, weights=self.teacher, temperature=heat)
            yield Query(own, attempt.token_ids, each.own_mask, temperature=heat)

    def gaps(self, batch: Batch) -> list[list[Float64]]:
        """Returns A_t of every attempt of each group, float64 [L]; 0 where the teacher scored
        nothing. Raises UserError if the batch lacks the answers."""
        found: dict[Hashable, Float64] = {}
        for each in self.readings(batch):
            own, taught = (answer_of(batch, key_of(what, each.source)) for what in (OWN, TEACHER))
            gap = np.zeros(len(each.own_mask))
            gap[each.own_mask] = taught[each.mask].astype(np.float64) - own[each.own_mask]
            found[key_of(OWN, each.source)] = gap
        return [
            [
                found.get(key_of(OWN, source), np.zeros(len(source.attempt.token_ids)))
                for source in batch.sources(group)
            ]
            for group in batch.groups
        ]

    def readings(self, batch: Batch) -> list[Reading]:
        """Returns the attempts that are read again. They are made once for a batch."""
        found = self._kept(batch)
        return [each for each in found if len(each.token_ids) <= self.reading_limit]

    def count_left_out(self, batch: Batch) -> int:
        """Returns how many attempts are too long to be read again."""
        return sum(len(each.token_ids) > self.reading_limit for each in self._kept(batch))

    def _kept(self, batch: Batch) -> list[Reading]:
        """Returns `_advised` of a batch, from the batch's memo if this algorithm has asked
        before."""
        made_of = (self, batch.groups, batch.chat)
        *before, found = batch.memo.get(READINGS, (None, None, None, []))
        if any(one is not other for one, other in zip(made_of, before, strict=True)):
            found = list(self._advised(batch))
            batch.memo[READINGS] = (*made_of, found)
        return list(found)

    def _advised(self, batch: Batch) -> Iterator[Reading]:
        """Yields the attempts that have advice, with it."""
        prompts = _prompts(self.advice, self.guidance_text)
        for group in batch.groups:
            thoughts = {thought.of: thought for thought in group.reflections}
            for attempt in group.trajectories:
                thought = thoughts.get(attempt.slot)
                if thought is None or not self.advises(thought, attempt):
                    continue
                step = self.pivot_of(thought, attempt)
                own_mask = attempt.responses_from(max(step, attempt.first_played))
                if own_mask.any():
                    parsed = reflection.parse(thought.text, attempt.num_steps)
                    ids, mask = batch.advised(attempt, prompts.guidance(parsed), step)
                    source = Source(group.group_id, group.group_id, attempt)
                    yield Reading(source, ids, mask, own_mask)

    def advises(self, thought: ReflectionRecord, attempt: Trajectory) -> bool:
        """Whether a stored reflection holds advice on an attempt."""
        try:
            return self.triggers(thought, attempt)
        except ReflectionError:  # of another algorithm, or put into the store by hand
            return False

    def metrics(self, groups: Sequence[Group]) -> dict[str, float]:
        """Adds the share of failures whose reflection holds advice."""
        failures = [
            any(t.of == a.slot and self.advises(t, a) for t in group.reflections)
            for group in groups
            for a in group.trajectories
            if a.reward < SUCCESS
        ]
        share = {"group/advised": sum(failures) / len(failures)} if failures else {}
        return Algorithm.metrics(self, groups) | share


@cache
def _prompts(advice: str, kind: GuidanceText) -> Prompts:
    """Returns prompts whose `guidance` is what the teacher reads."""
    own = Prompts().texts["guidance" if kind == "report" else "advice"]
    return Prompts({"guidance": advice or own})
