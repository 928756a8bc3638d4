"""A world of one guess, which half of all guesses win."""

from r3l.rollout.env_interface import EnvSpec


class Coin:
    in_process = True
    spec = EnvSpec("coin", "Say heads or tails.", max_steps=1, max_response_tokens=16)

    def reset(self, *, seed, options=None):
        self.side = ("heads", "tails")[seed % 2]
        return f"Coin {seed} lies under the hand.", {}

    def step(self, action):
        right = action == self.side
        return "Yes." if right else "No.", float(right), right, True, {}

    def feedback(self):
        return f"It was {self.side}."

    def close(self): ...
