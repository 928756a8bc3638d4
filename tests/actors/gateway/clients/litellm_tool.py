"""litellm: a tool call and its result, then structured output."""

import json
import os
import sys

import litellm
from pydantic import BaseModel


class Shape(BaseModel):
    a: int


numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
tool = {"name": "multiply", "parameters": {"type": "object", "properties": numbers}}
messages = [{"role": "user", "content": "What is 12 times 13?"}]


def ask(**more):
    made = {
        "model": "openai/policy",
        "messages": messages,
        "api_base": os.environ["OPENAI_BASE_URL"],
    }
    if "stream" not in sys.argv:
        return litellm.completion(**made, **more).choices[0].message
    parts = list(litellm.completion(**made, **more, stream=True))
    return litellm.stream_chunk_builder(parts, messages=messages).choices[0].message


tools = [{"type": "function", "function": tool}]
first = ask(tools=tools)
(call,) = first.tool_calls
messages += [
    first.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": "156"},
]
right = "156" in ask(tools=tools).content
messages = [{"role": "user", "content": "json"}]
shaped = json.loads(ask(response_format=Shape).content)
print(json.dumps({"reward": float(right and "a" in shaped)}))
