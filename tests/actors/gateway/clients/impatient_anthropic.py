"""Anthropic's client with a time-out below the time that sampling takes; it retries."""

import json
import sys

from anthropic import Anthropic

client = Anthropic(timeout=0.4, max_retries=5)
asked = {
    "model": "policy",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "slow"}],
}
if "stream" in sys.argv:
    with client.messages.stream(**asked) as stream:
        text = stream.get_final_text()
else:
    text = client.messages.create(**asked).content[0].text
print(json.dumps({"reward": float(bool(text))}))
