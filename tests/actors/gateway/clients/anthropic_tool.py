"""Anthropic's client: a tool call and its result."""

import json
import sys

from anthropic import Anthropic

client = Anthropic()
tools = [
    {"name": "multiply", "description": "x", "input_schema": {"type": "object", "properties": {}}}
]
messages = [{"role": "user", "content": "What is 12 times 13?"}]
more = {"model": "policy", "max_tokens": 200, "system": "Use the tool.", "tools": tools}


def ask():
    if "stream" not in sys.argv:
        return client.messages.create(messages=messages, **more)
    with client.messages.stream(messages=messages, **more) as stream:
        return stream.get_final_message()


first = ask()
(use,) = [block for block in first.content if block.type == "tool_use"]
messages += [
    {"role": "assistant", "content": [block.model_dump() for block in first.content]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "156"}]},
]
last = ask()
right = "156" in last.content[0].text and use.input == {"a": 12, "b": 13}
print(json.dumps({"reward": float(right)}))
