"""DSPy: ReAct with a tool, whose calls are text, and a prediction with native tool calls."""

import asyncio
import json
import os
import sys

import dspy


def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


async def main() -> None:
    dspy.configure(lm=dspy.LM("openai/policy", api_base=os.environ["OPENAI_BASE_URL"]))
    agent = dspy.ReAct("question -> answer: int", tools=[multiply], max_iters=3)
    if "stream" in sys.argv:
        async for part in dspy.streamify(agent)(question="What is 12 times 13?"):
            made = part
    else:
        made = await agent.acall(question="What is 12 times 13?")
    print(json.dumps({"reward": float(made.answer == 156)}))


asyncio.run(main())
