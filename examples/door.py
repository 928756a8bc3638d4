"""The smallest environment that can be warmed up, trained and evaluated: a word opens a door.

r3l-launch --env examples/door.py:Door --check
"""

from r3l.rollout.env_interface import EnvSpec

WORDS = "sesame friend candle harbour meadow silver".split()


class Door:
    """A door wears two words and a number that says which of them opens it."""

    in_process = True  # quick, and unable to hang
    spec = EnvSpec(
        "door",
        "A door wears two words and a number. Say the word that the number names.",
        max_steps=3,
        max_response_tokens=8,
    )

    def reset(self, *, seed, options=None):
        """The same seed gives the same door."""
        first, second = WORDS[seed % 6], WORDS[(seed // 6 + seed % 6 + 1) % 6]
        number = seed // 36 % 2
        self.word = (first, second)[number]
        return f"The door wears {first} and {second}, number {number}.", {}

    def step(self, action):
        """Returns (observation, reward, terminated, truncated, info)."""
        if action.strip() == self.word:
            return "It opens.", 1.0, True, False, {}
        return f"It stays shut, it wants {self.word}.", 0.0, False, False, {}

    def demonstration(self):
        """What a warm-up learns from: the actions that solve the task of the last reset."""
        return [self.word]

    def close(self):
        """Nothing is held open."""
