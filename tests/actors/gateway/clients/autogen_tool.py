"""AutoGen: an assistant with a tool."""

import asyncio
import json
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient


def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


async def main() -> None:
    able = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown"}
    client = OpenAIChatCompletionClient(
        model="policy",
        base_url=os.environ["OPENAI_BASE_URL"],
        model_info=able | {"structured_output": True},
    )
    stream = "stream" in sys.argv
    agent = AssistantAgent(
        "x", client, tools=[multiply], reflect_on_tool_use=True, model_client_stream=stream
    )
    if stream:
        *_, result = [part async for part in agent.run_stream(task="What is 12 times 13?")]
    else:
        result = await agent.run(task="What is 12 times 13?")
    print(json.dumps({"reward": float("156" in result.messages[-1].content)}))


asyncio.run(main())
