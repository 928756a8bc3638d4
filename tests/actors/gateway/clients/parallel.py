"""The openai client: three parallel tool calls, in a stream put together by the client."""

import json
import sys

from openai import OpenAI

TOOL = {"name": "multiply", "parameters": {"type": "object", "properties": {}}}
client = OpenAI()
messages = [{"role": "user", "content": "three of them"}]
asked = {"model": "policy", "tools": [{"type": "function", "function": TOOL}]}
if "stream" in sys.argv:
    with client.chat.completions.stream(messages=messages, **asked) as stream:
        stream.until_done()
        reply = stream.get_final_completion().choices[0].message
else:
    reply = client.chat.completions.create(messages=messages, **asked).choices[0].message
messages.append(
    {
        "role": "assistant",
        "content": reply.content,
        "tool_calls": [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.function.name, "arguments": c.function.arguments},
            }
            for c in reply.tool_calls
        ],
    }
)
for call in reply.tool_calls:
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "6"})
last = client.chat.completions.create(model="policy", messages=messages).choices[0].message
print(json.dumps({"reward": float(len(reply.tool_calls) == 3 and "156" in last.content)}))
