"""A world of two steps that rewards every attempt alike, or by chance. No response is an answer."""

import random

from r3l.rollout.env_interface import EnvSpec


class Hopeless:
    in_process = True
    spec = EnvSpec(
        "hopeless", "Answer use and a tool, or look.", max_steps=2, max_response_tokens=8
    )

    def __init__(self, reward=0.0, chance=False):
        self.reward, self.chance = reward, chance

    def reset(self, *, seed, options=None):
        self.steps = 0
        return "station 0 has clock", {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 2
        reward = random.random() if self.chance else self.reward
        return "it spoils", reward * over, over, False, {"rewards": {"answered": 0.0}}

    def feedback(self):
        return "step 0 spoils, clock needs saw"

    def close(self): ...
