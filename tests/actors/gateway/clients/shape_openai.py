"""The openai client: a tool and structured output in one request."""

import json
import sys

from openai import OpenAI

TOOL = {"name": "multiply", "parameters": {"type": "object", "properties": {}}}
SHAPE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
client = OpenAI()
client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
messages = [{"role": "user", "content": "What is 12 times 13?"}]
asked = {
    "model": "policy",
    "tools": [{"type": "function", "function": TOOL}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SHAPE}},
}


def ask() -> object:
    if "stream" not in sys.argv:
        return client.chat.completions.create(messages=messages, **asked).choices[0].message
    with client.chat.completions.stream(messages=messages, **asked) as stream:
        stream.until_done()
        return stream.get_final_completion().choices[0].message


reply = ask()
if reply.tool_calls:
    (call,) = reply.tool_calls
    made = {"name": call.function.name, "arguments": call.function.arguments}
    calls = [{"id": call.id, "type": "function", "function": made}]
    messages.append({"role": "assistant", "content": reply.content, "tool_calls": calls})
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "156"})
    reply = ask()
print(json.dumps({"reward": float("a" in json.loads(reply.content))}))
