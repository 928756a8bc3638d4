"""The dials of a world: settings of how long its attempts and reflections are and of what a remark
says, and the checks of every setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from r3l.errors import UserError

Setting = tuple[str, object]
"""A setting's name, as the user knows it, and the value given."""

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
        integer(("words", self.words), 0, MOST_WORDS)
        for name, known in (("summary", get_args(Summary)), ("hint", get_args(Hint))):
            if (value := getattr(self, name)) not in known:
                raise UserError(f"env option {name} is {value!r}; it must be {' or '.join(known)}")

    @property
    def feedback(self) -> Literal["causal", "weak", "none"]:
        """What remarks say of an error, as `r3l.rollout.interfaces.EnvSpec` names it."""
        names = {"what": "causal", "where": "weak", "none": "none"}
        return cast(Literal["causal", "weak", "none"], names[self.hint])


def integer(setting: Setting, low: int, high: int, default: int | None = None) -> int:
    """The setting's value, or `default` for None. Raises UserError outside low..high."""
    name, value = setting
    if value is None and default is not None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise UserError(f"env option {name} is {value!r}; it must be an integer in {low}..{high}")
    return value
