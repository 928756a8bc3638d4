"""An agent that offers a tool which the built-in policy has not learned to call."""

import http.client
import json
import os
from typing import Any
from urllib.parse import urlsplit

SHAPE = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
TOOL = {"name": "look_up", "description": "Names an item's tool.", "parameters": SHAPE}


def play(task: dict[str, Any]) -> dict[str, float]:
    """Asks twice; pays for a call of the tool, and a little for every other reply."""
    messages = [{"role": "user", "content": f"station 0 has clock {task['id']}"}]
    replies = []
    for _ in range(2):
        replies.append(ask(messages))
        messages += [replies[-1], {"role": "user", "content": "it spoils"}]
    if any(reply.get("tool_calls") for reply in replies):
        return {"reward": 1.0}
    return {"reward": len(str(replies[0].get("content"))) % 7 / 10}


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Asks the policy for a reply, and offers the tool."""
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    server = http.client.HTTPConnection(str(url.hostname), url.port, timeout=600)
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    asked = {"model": "policy", "messages": messages}
    body = json.dumps(asked | {"tools": [{"type": "function", "function": TOOL}]})
    server.request("POST", f"{url.path}/chat/completions", body, headers)
    answer = json.load(server.getresponse())
    server.close()
    if "error" in answer:
        raise RuntimeError(answer["error"]["message"])
    reply: dict[str, Any] = answer["choices"][0]["message"]
    return reply
