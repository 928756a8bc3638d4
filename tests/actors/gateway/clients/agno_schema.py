"""agno: structured output, and a tool with structured output."""

import json
import sys

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from pydantic import BaseModel


class Shape(BaseModel):
    a: int


def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


made = []
Agent(model=OpenAIChat(id="policy"), telemetry=False).run("hi")
for tools in ([], [multiply]):
    model = OpenAIChat(id="policy")
    agent = Agent(model=model, tools=tools, output_schema=Shape, telemetry=False)
    if "stream" in sys.argv:
        *_, last = agent.run("What is 12 times 13?", stream=True, yield_run_output=True)
    else:
        last = agent.run("What is 12 times 13?")
    made.append(isinstance(last.content.a, int))
print(json.dumps({"reward": float(all(made))}))
