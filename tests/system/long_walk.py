"""A world of many steps, whose observations depend on every action before."""

import zlib

from r3l.rollout.env_interface import EnvSpec

STEPS = 50


class Walk:
    in_process = True
    spec = EnvSpec("walk", "Say heads or tails.", max_steps=STEPS, max_response_tokens=16)

    def reset(self, *, seed, options=None):
        self.place, self.steps = seed, 0
        return f"You are at {self.place}.", {}

    def step(self, action):
        self.place, self.steps = zlib.crc32(f"{self.place} {action}".encode()), self.steps + 1
        return f"You are at {self.place}.", self.place / 2**32 / STEPS, False, False, {}

    def close(self): ...
