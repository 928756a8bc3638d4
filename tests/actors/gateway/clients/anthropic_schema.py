"""Anthropic's client asks for structured output."""

import json
import sys

from anthropic import Anthropic

client = Anthropic()
shape = {"type": "object", "properties": {"a": {"type": "integer"}}}
asked = {
    "model": "policy",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "json"}],
    "output_config": {"format": {"type": "json_schema", "schema": shape}},
}
plain = client.messages.create(
    model="policy", max_tokens=200, messages=[{"role": "user", "content": "hi"}]
)
if "stream" in sys.argv:
    with client.messages.stream(**asked) as stream:
        reply = stream.get_final_message()
else:
    reply = client.messages.create(**asked)
print(json.dumps({"reward": float("a" in json.loads(reply.content[0].text))}))
