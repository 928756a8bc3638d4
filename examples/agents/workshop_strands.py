"""The workshop, played by a Strands agent: pip install "strands-agents[openai]" numpy msgspec"""

import os

from strands import Agent
from strands.models.openai import OpenAIModel
from workshop_row import Row


def play(task):
    """Plays one row of stations; returns the share of right tools."""
    row = Row(task)
    server = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    model = OpenAIModel(client_args=server, model_id="policy", stream=False)
    agent = Agent(model=model, system_prompt=row.system, callback_handler=None)
    while row.goes_on:
        row.act(str(agent(row.observation)).strip())
    return row.result()
