"""The openai client asks for structured output."""

import json
import sys

from openai import OpenAI

client = OpenAI()
shape = {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
plain = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
asked = {
    "model": "policy",
    "messages": [{"role": "user", "content": "json"}],
    "response_format": {"type": "json_schema", "json_schema": shape},
}
if "stream" in sys.argv:
    with client.chat.completions.stream(**asked) as stream:
        reply = stream.get_final_completion().choices[0].message
else:
    reply = client.chat.completions.create(**asked).choices[0].message
print(json.dumps({"reward": float("a" in json.loads(reply.content))}))
