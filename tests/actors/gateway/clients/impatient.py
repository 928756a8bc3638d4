"""The openai client with a time-out below the time that sampling takes; it retries."""

import json
import sys

from openai import OpenAI

client = OpenAI(timeout=0.4, max_retries=5)
asked = {"model": "policy", "messages": [{"role": "user", "content": "slow"}]}
if "stream" in sys.argv:
    parts = client.chat.completions.create(stream=True, **asked)
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
else:
    text = client.chat.completions.create(**asked).choices[0].message.content
print(json.dumps({"reward": float(bool(text))}))
