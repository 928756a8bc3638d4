"""The workshop, played by AutoGen: pip install autogen-agentchat "autogen-ext[openai]" msgspec"""

import os

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from workshop_row import Row

ABLE = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown"}


async def play(task):
    """Plays one row of stations; returns the share of right tools."""
    row = Row(task)
    client = OpenAIChatCompletionClient(
        model="policy",
        base_url=os.environ["OPENAI_BASE_URL"],
        model_info=ABLE | {"structured_output": True},
        include_name_in_message=False,
    )
    agent = AssistantAgent("worker", client, system_message=row.system)
    while row.goes_on:
        row.act((await agent.run(task=row.observation)).messages[-1].content)
    return row.result()
