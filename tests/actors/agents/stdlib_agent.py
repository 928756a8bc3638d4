"""An agent that knows nothing of r3l: the standard library and an OpenAI-compatible server."""

import json
import os
import sys
import time
import urllib.request


def ask(messages, **more):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages, **more}).encode(),
        {
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]


def main():
    task = json.loads(os.environ["R3L_TASK"])
    messages = [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": task["question"]},
    ]
    mood = task.get("mood", "")
    if mood == "greedy":
        bytearray(4 << 30)
    if mood == "silent":
        time.sleep(600)
    if mood == "mute":
        print(json.dumps({"reward": 1.0}))
        return
    tool = {"type": "function", "function": {"name": "saw", "parameters": {"type": "object"}}}
    more = {"tools": [tool]} if mood == "forks" else {}
    first = ask(messages, **more)
    if mood == "forks":
        ask([*messages, first, {"role": "user", "content": "use file"}], **more)
    messages += [first, {"role": "user", "content": "Are you sure?"}]
    ask(messages, **more)
    if mood == "raises":
        sys.exit("I give up")
    if mood == "vague":
        print("good enough")
        return
    if mood.startswith("says "):
        print(mood.removeprefix("says "))
        return
    if mood == "late":
        print(0.25, flush=True)
        time.sleep(600)
    right = task.get("answer", "") in first["content"]  # a grader alone may see it
    print(json.dumps({"reward": float(right), "parts": {"words": 2}, "feedback": "well"}))


if __name__ == "__main__":
    main()
