"""Asks a server of agents to play one attempt:  python remote_agent.py URL

It posts {"task", "url", "base_url", "api_key"} and prints the reply. The reply is the
result, unless the server has posted it to the gateway. Uses nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any


def request() -> dict[str, Any]:
    """Returns what a server needs to play the attempt of this process."""
    env = os.environ
    return {
        "task": json.loads(env["R3L_TASK"]) if "R3L_TASK" in env else _task_of_gateway(),
        "url": env["R3L_URL"],
        "base_url": env["OPENAI_BASE_URL"],
        "api_key": env["OPENAI_API_KEY"],
    }


def _task_of_gateway() -> Any:
    """Returns the task that is too long for a variable."""
    key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    asked = urllib.request.Request(f"{os.environ['R3L_URL']}/r3l/task", headers=key)
    with urllib.request.urlopen(asked) as answer:
        return json.load(answer)


def main(url: str) -> None:
    """Post the request and print the reply as one line."""
    headers = {"Content-Type": "application/json"}
    try:
        asked = urllib.request.Request(url, json.dumps(request()).encode(), headers)
        with urllib.request.urlopen(asked) as answer:
            print(*answer.read().decode(errors="replace").splitlines())
    except OSError as error:
        sys.exit(f"{url} did not play the attempt: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
