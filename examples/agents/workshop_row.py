"""A row of the workshop, for agents of any framework: what to say to the model, and the reward.

row = Row(task)
while row.goes_on:
    row.act(…)  # the model's reply to row.system and row.observation
return row.result()
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the world is r3l's

from envs.builtin.workshop import Workshop


class Row:
    """One row of stations."""

    def __init__(self, task):
        self.stations = task.get("stations", 5)
        self.world = Workshop(stations=self.stations)
        self.system = self.world.spec.system_prompt
        self.observation, _ = self.world.reset(seed=task["seed"])
        self.right, self.goes_on = 0, True

    def act(self, reply):
        """Uses the tool that a reply names."""
        self.observation, _, terminated, truncated, _ = self.world.step(reply)
        self.right += self.observation.startswith("it fits")
        self.goes_on = not (terminated or truncated)

    def result(self):
        """Returns the share of right tools, and what was wrong."""
        feedback = f"{self.observation}\n{self.world.feedback()}"
        return {"reward": self.right / self.stations, "feedback": feedback}
