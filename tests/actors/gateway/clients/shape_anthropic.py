"""Anthropic's client: a tool and structured output in one request."""

import json
import sys

from anthropic import Anthropic

SHAPE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"name": "multiply", "description": "x", "input_schema": {"type": "object"}}
client = Anthropic()
client.messages.create(model="policy", max_tokens=200, messages=[{"role": "user", "content": "hi"}])
messages = [{"role": "user", "content": "What is 12 times 13?"}]
more = {
    "model": "policy",
    "max_tokens": 200,
    "tools": [TOOL],
    "output_config": {"format": {"type": "json_schema", "schema": SHAPE}},
}


def ask() -> object:
    if "stream" not in sys.argv:
        return client.messages.create(messages=messages, **more)
    with client.messages.stream(messages=messages, **more) as stream:
        return stream.get_final_message()


reply = ask()
for use in [block for block in reply.content if block.type == "tool_use"]:
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "156"}
    blocks = [block.model_dump(exclude_none=True) for block in reply.content]
    messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}]
    reply = ask()
print(json.dumps({"reward": float("a" in json.loads(reply.content[0].text))}))
