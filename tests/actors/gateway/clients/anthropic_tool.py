"""Anthropic's client: a tool call and its result, whole and streamed."""

import json

from anthropic import Anthropic

client = Anthropic()
tools = [
    {"name": "multiply", "description": "x", "input_schema": {"type": "object", "properties": {}}}
]
messages = [{"role": "user", "content": "What is 12 times 13?"}]
more = {"model": "policy", "max_tokens": 200, "system": "Use the tool.", "tools": tools}
first = client.messages.create(messages=messages, **more)
(use,) = [block for block in first.content if block.type == "tool_use"]
messages += [
    {"role": "assistant", "content": [block.model_dump() for block in first.content]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "156"}]},
]
with client.messages.stream(messages=messages, **more) as stream:
    last = stream.get_final_message()
print(
    json.dumps({"reward": float("156" in last.content[0].text and use.input == {"a": 12, "b": 13})})
)
