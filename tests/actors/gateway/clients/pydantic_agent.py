"""pydantic-ai: a tool, whose arguments it serialises again."""

import json

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("policy"), system_prompt="Use the tool.")


@agent.tool_plain
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


result = agent.run_sync("What is 12 times 13?")
print(json.dumps({"reward": float("156" in result.output)}))
