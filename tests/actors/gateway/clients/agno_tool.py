"""agno: an agent with a tool."""

import json
import sys

from agno.agent import Agent
from agno.models.openai import OpenAIChat


def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


agent = Agent(model=OpenAIChat(id="policy"), tools=[multiply], telemetry=False)
if "stream" in sys.argv:
    events = agent.run("What is 12 times 13?", stream=True)
    content = "".join(str(event.content) for event in events if getattr(event, "content", None))
else:
    content = agent.run("What is 12 times 13?").content
print(json.dumps({"reward": float("156" in content)}))
