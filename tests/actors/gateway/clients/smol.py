"""smolagents: a tool-calling agent, which rewrites its own replies."""

import json
import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies.

    Args:
        a: a number
        b: a number
    """
    return a * b


model = OpenAIServerModel(
    "policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
agent = ToolCallingAgent(
    tools=[multiply],
    model=model,
    max_steps=3,
    verbosity_level=0,
    stream_outputs="stream" in sys.argv,
)
result = agent.run("What is 12 times 13?")
print()
print(json.dumps({"reward": 1.0, "feedback": str(result)}))
