"""The dials of a world: how long its attempts and reflections are, and what a remark says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from envs import requirements

Summary = Literal["full", "brief"]
Hint = Literal["what", "where", "none"]
MOST_WORDS = 64


@dataclass(frozen=True)
class Dials:
    """The dials of a world. Raises UserError for a value out of range.

    `words`: words of thought before each answer, 0..64. `summary`: what a reflection's
    trajectory_summary lists, every step (full) or those that were not right (brief). `hint`: what
    the remark on a wrong answer says: which answer was needed (what), only that it is wrong
    (where), or the same as on a right one (none).
    """

    words: int = 0
    summary: Summary = "full"
    hint: Hint = "what"

    def __post_init__(self) -> None:
        requirements.integer("words", self.words, 0, MOST_WORDS)
        requirements.choice("summary", self.summary, get_args(Summary))
        requirements.choice("hint", self.hint, get_args(Hint))

    @property
    def feedback(self) -> Literal["causal", "weak", "none"]:
        """What remarks say of an error, as `r3l.rollout.interfaces.EnvSpec` names it."""
        names = {"what": "causal", "where": "weak", "none": "none"}
        return cast(Literal["causal", "weak", "none"], names[self.hint])
