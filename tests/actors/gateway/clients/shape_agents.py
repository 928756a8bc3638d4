"""OpenAI Agents SDK over /v1/responses: a tool and structured output in one request."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel


class Shape(BaseModel):
    a: int


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


async def main() -> None:
    hi = [{"role": "user", "content": "hi"}]
    await AsyncOpenAI().chat.completions.create(model="policy", messages=hi)
    agent = Agent(
        name="x",
        instructions="Use the tool.",
        model="policy",
        tools=[multiply],
        output_type=Shape,
    )
    if "stream" in sys.argv:
        result = Runner.run_streamed(agent, "What is 12 times 13?", max_turns=4)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, "What is 12 times 13?", max_turns=4)
    print(json.dumps({"reward": float(isinstance(result.final_output.a, int))}))


asyncio.run(main())
