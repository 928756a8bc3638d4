"""OpenAI Agents SDK: a tool, over /v1/responses."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


async def main() -> None:
    agent = Agent(name="x", instructions="Use the tool.", model="policy", tools=[multiply])
    if "stream" in sys.argv:
        result = Runner.run_streamed(agent, "What is 12 times 13?", max_turns=4)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, "What is 12 times 13?", max_turns=4)
    print(json.dumps({"reward": float("156" in str(result.final_output))}))


asyncio.run(main())
