"""Asks a server to play an attempt. envs.agents.call_function calls `play` once for each attempt.

The server's reply is the attempt's result, unless the server has posted a result to the gateway.
This file uses only the standard library.
"""

import json
import os
import sys
import urllib.request
from typing import Any

LONGEST = 32 << 20
"""The most bytes of a reply."""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses every redirect. A redirect could lead to any machine, and it drops the posted
    task."""

    def redirect_request(self, asked: Any, *given: Any) -> None:
        place = given[-1]
        sys.exit(f"{asked.full_url} redirects to {place:.200}; write that address as the command")


def play(task: dict[str, Any], url: str) -> Any:
    """Posts a task and the gateway's addresses and key to a server. Returns the reply."""
    env = os.environ
    body = {"task": task, "url": env["R3L_URL"], "base_url": env["OPENAI_BASE_URL"]}
    body["api_key"] = env["OPENAI_API_KEY"]
    headers = {"Content-Type": "application/json"}
    try:
        asked = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.build_opener(NoRedirects).open(asked) as answer:
            content = answer.read(LONGEST + 1)
    except OSError as error:
        sys.exit(f"{url} did not play the attempt: {error}")
    if len(content) > LONGEST:
        sys.exit(f"{url} did not play the attempt: its reply has more than {LONGEST} bytes")
    text = content.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
