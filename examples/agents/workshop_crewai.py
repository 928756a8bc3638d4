"""The workshop, played by a flow of CrewAI: pip install crewai numpy msgspec

CrewAI's own agents wrap each text in words that the built-in policy was not taught. A flow asks the
model in its own words.
"""

import os

from crewai import LLM
from crewai.flow.flow import Flow, start
from workshop_row import Row


class Working(Flow):
    """Uses tools until the row has ended."""

    @start()
    def work(self):
        llm = LLM(model="openai/policy", base_url=os.environ["OPENAI_BASE_URL"])
        messages = [{"role": "system", "content": self.row.system}]
        while self.row.goes_on:
            messages.append({"role": "user", "content": self.row.observation})
            messages.append({"role": "assistant", "content": llm.call(messages)})
            self.row.act(messages[-1]["content"])


def play(task):
    """Plays one row of stations; returns the share of right tools."""
    Working.row = Row(task)
    Working(suppress_flow_events=True).kickoff()
    return Working.row.result()
