"""An agent for the built-in policy: it plays r3l's workshop in its own process.

    r3l-launch --config examples/agents/workshop.yaml --run workshop

It knows nothing of training: it asks an OpenAI-compatible server what to do, and returns the share
of stations that it got right.
"""

import http.client
import json
import os
from urllib.parse import urlsplit

from envs.builtin.workshop import Workshop


def play(task):
    """Plays one row of stations; returns the share of right tools."""
    stations = task.get("stations", 5)
    world = Workshop(stations=stations)
    observation, _ = world.reset(seed=task["seed"])
    messages = [{"role": "system", "content": world.spec.system_prompt}]
    ended, right = False, 0
    while not ended:
        messages.append({"role": "user", "content": observation})
        reply = ask(messages)
        messages.append(reply)
        observation, reward, terminated, truncated, _ = world.step(reply["content"])
        right += observation.startswith("it fits")
        ended = terminated or truncated
    feedback = f"{observation}\n{world.feedback()}"
    return {"reward": right / stations, "parts": {"success": reward}, "feedback": feedback}


def ask(messages):
    """Asks for the next reply."""
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    server = http.client.HTTPConnection(url.hostname, url.port, timeout=600)
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    body = json.dumps({"model": "policy", "messages": messages})
    server.request("POST", url.path + "/chat/completions", body, headers)
    answer = json.load(server.getresponse())
    server.close()
    if "error" in answer:
        raise RuntimeError(answer["error"]["message"])
    return answer["choices"][0]["message"]
