"""The openai client with a time-out below the time that sampling takes; it retries."""

import json

from openai import OpenAI

client = OpenAI(timeout=0.4, max_retries=5)
asked = [{"role": "user", "content": "slow"}]
reply = client.chat.completions.create(model="policy", messages=asked).choices[0].message
print(json.dumps({"reward": float(bool(reply.content))}))
