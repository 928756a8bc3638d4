"""OpenAI Agents SDK: one agent hands the conversation over to another, streamed."""

import asyncio
import json

from agents import Agent, Runner


async def main() -> None:
    other = Agent(name="poet", instructions="You are a poet.", model="policy")
    first = Agent(name="clerk", instructions="Hand over.", model="policy", handoffs=[other])
    result = Runner.run_streamed(first, "a poem, please", max_turns=4)
    async for _ in result.stream_events():
        pass
    print(
        json.dumps(
            {
                "reward": float(result.last_agent.name == "poet"),
                "feedback": str(result.final_output),
            }
        )
    )


asyncio.run(main())
