"""Your own reward, of several parts that TensorBoard shows apart.

r3l-launch --env examples/two_rewards.py:Sums --model MODEL
"""

import random
import re

from r3l.rollout.env_interface import EnvSpec


class Sums:
    """An addition; the answer counts most, its form and its length a little."""

    in_process = True
    spec = EnvSpec(
        "sums",
        "Add the numbers. Think briefly, then answer as <answer>12</answer>.",
        max_steps=1,
        max_response_tokens=128,
        success_threshold=1.0,  # of the sum of all parts; rewards are recorded in units of it
    )

    def reset(self, *, seed, options=None):
        """Two numbers below 50."""
        first, second = random.Random(seed).choices(range(50), k=2)
        self.sum = str(first + second)
        return f"{first} + {second}", {}

    def step(self, action):
        """info["rewards"] names the parts: TensorBoard shows each as group/part_<name>."""
        found = re.search(r"<answer>\s*(\d+)\s*</answer>", action)
        parts = {
            "answer": 1.0 if found is not None and found[1] == self.sum else 0.0,
            "form": 0.0 if found is not None else -0.2,
            "length": -0.001 * max(0, len(action) - 100),
        }
        return "Done.", sum(parts.values()), True, False, {"rewards": parts}

    def demonstration(self):
        """Makes a warm-up possible."""
        return [f"<answer>{self.sum}</answer>"]

    def close(self):
        """Nothing is held open."""
