"""OpenAI Agents SDK: one agent hands the conversation over to another."""

import asyncio
import json
import sys

from agents import Agent, Runner


async def main() -> None:
    other = Agent(name="poet", instructions="You are a poet.", model="policy")
    first = Agent(name="clerk", instructions="Hand over.", model="policy", handoffs=[other])
    if "stream" in sys.argv:
        result = Runner.run_streamed(first, "a poem, please", max_turns=4)
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(first, "a poem, please", max_turns=4)
    reward = float(result.last_agent.name == "poet")
    print(json.dumps({"reward": reward, "feedback": str(result.final_output)}))


asyncio.run(main())
