"""The openai client asks the same five times at once, to take the majority of the answers."""

import asyncio
import json
import sys

from openai import AsyncOpenAI

ASKED = {"model": "policy", "messages": [{"role": "user", "content": "slow"}]}


async def main() -> None:
    client = AsyncOpenAI()

    async def ask() -> str:
        if "stream" not in sys.argv:
            return (await client.chat.completions.create(**ASKED)).choices[0].message.content
        parts = await client.chat.completions.create(stream=True, **ASKED)
        return "".join([part.choices[0].delta.content or "" async for part in parts])

    answers = await asyncio.gather(*(ask() for _ in range(5)))
    print(json.dumps({"reward": float(len(set(answers)) == 5), "feedback": str(answers)}))


asyncio.run(main())
