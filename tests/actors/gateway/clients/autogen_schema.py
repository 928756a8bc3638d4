"""AutoGen: structured output, and a tool with structured output."""

import asyncio
import json
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel


class Shape(BaseModel):
    a: int


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
    stream, made = "stream" in sys.argv, []
    await AssistantAgent("plain", client).run(task="hi")
    tool = FunctionTool(multiply, "Multiplies a and b.", strict=True)
    for tools in ([], [tool]):
        agent = AssistantAgent(
            "x", client, tools=tools, output_content_type=Shape, model_client_stream=stream,
            reflect_on_tool_use=True,
        )  # fmt: skip
        if stream:
            *_, result = [part async for part in agent.run_stream(task="What is 12 times 13?")]
        else:
            result = await agent.run(task="What is 12 times 13?")
        made.append(isinstance(result.messages[-1].content.a, int))
    print(json.dumps({"reward": float(all(made))}))


asyncio.run(main())
