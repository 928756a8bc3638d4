"""pydantic-ai over both of OpenAI's interfaces: a tool and structured output in one request."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel


class Shape(BaseModel):
    a: int


def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


async def read(context: object, events: AsyncIterator[object]) -> None:
    async for _ in events:  # with a handler the model's replies are streamed
        pass


async def main() -> None:
    hi = [{"role": "user", "content": "hi"}]
    await AsyncOpenAI().chat.completions.create(model="policy", messages=hi)
    handler, made = read if "stream" in sys.argv else None, []
    for model in (OpenAIChatModel("policy"), OpenAIResponsesModel("policy")):
        agent = Agent(model, tools=[multiply], output_type=NativeOutput(Shape))
        result = await agent.run("What is 12 times 13?", event_stream_handler=handler)
        made.append(isinstance(result.output.a, int))
    print(json.dumps({"reward": float(all(made))}))


asyncio.run(main())
