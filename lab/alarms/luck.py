"""A world whose reward is chance. It is used to make runs that cannot learn."""

import random
from itertools import count

from r3l.rollout.env_interface import EnvSpec


class Luck:
    """Two steps, then a reward.

    `wins`: probability of the reward 1; otherwise the reward is 0. `until`: how many attempts of
    this process can win. `form`: whether only a response that begins with "use" can win, and
    counts as answered.
    """

    in_process = True
    spec = EnvSpec("luck", "Answer use and a tool, or look.", max_steps=2, max_response_tokens=8)
    attempts = count()

    def __init__(
        self,
        *,
        wins: float = 0.0,
        until: int | None = None,
        form: bool = False,
        answered: bool = True,
    ) -> None:
        self.wins, self.until, self.form, self.answered = wins, until, form, answered

    def reset(self, *, seed: int, options: object = None) -> tuple[str, dict[str, object]]:
        """Starts an attempt."""
        self.steps, self.used = 0, True
        self.number = next(self.attempts)
        return "station 0 has clock", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, object]]:
        """Takes a response; the second one ends the attempt."""
        self.steps += 1
        self.used = self.used and action.startswith("use ")
        over, reward = self.steps == 2, 0.0
        if over:
            late = self.until is not None and self.number >= self.until
            wins = not late and (self.used or not self.form) and random.random() < self.wins
            reward = float(wins)
        said = float(self.used if self.form else self.answered)
        return "it spoils", reward, over, False, {"rewards": {"answered": said * over}}

    def feedback(self) -> str:
        """Says what went wrong."""
        return "step 0 spoils, clock needs saw"

    def close(self) -> None:
        """Does nothing."""
