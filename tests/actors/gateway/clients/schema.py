"""The openai client asks for structured output."""

import json

from openai import OpenAI

client = OpenAI()
shape = {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
plain = client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
reply = client.chat.completions.create(
    model="policy",
    messages=[{"role": "user", "content": "json"}],
    response_format={"type": "json_schema", "json_schema": shape},
)
print(json.dumps({"reward": float("a" in json.loads(reply.choices[0].message.content))}))
