"""Strands: an agent with a tool, then structured output, which it asks for as a tool call."""

import json
import os
import sys

from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel


class Shape(BaseModel):
    a: int


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


given = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = OpenAIModel(client_args=given, model_id="policy", stream="stream" in sys.argv)
agent = Agent(model=model, tools=[multiply], callback_handler=None)
right = "156" in str(agent("What is 12 times 13?"))
agent = Agent(model=model, tools=[multiply], callback_handler=None)
shaped = agent("What is 12 times 13?", structured_output_model=Shape).structured_output
print(json.dumps({"reward": float(right and isinstance(shaped.a, int))}))
