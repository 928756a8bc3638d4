"""pydantic-ai over /v1/responses: a tool."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel

agent = Agent(OpenAIResponsesModel("policy"), system_prompt="Use the tool.")


@agent.tool_plain
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


async def read(context: object, events: AsyncIterator[object]) -> None:
    async for _ in events:  # with a handler the model's replies are streamed
        pass


async def main() -> None:
    handler = read if "stream" in sys.argv else None
    result = await agent.run("What is 12 times 13?", event_stream_handler=handler)
    print(json.dumps({"reward": float("156" in result.output)}))


asyncio.run(main())
