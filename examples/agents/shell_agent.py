"""An agent with a shell: each reply is a command, run in the attempt's folder.

    command: examples/agents/shell_agent.py:work
    tasks: {"id": 1, "goal": "write the number of files to count.txt", "turns": 6}
    reward: a grader that looks into the folder

    tasks: examples/agents/harbor, a folder of tasks in Harbor's format, whose tests are the grader

It can be retried from any call: the same commands in the same folder write the same output.
"""

import json
import os
import subprocess
import urllib.request

LONGEST = 2000  # characters of output that are shown


def work(task):
    """Works on a task until the policy says done, or its turns are over."""
    messages = [
        {"role": "system", "content": "Each reply is one shell command; reply done at the end."},
        {"role": "user", "content": task.get("instruction") or task["goal"]},
    ]
    for _ in range(task.get("turns", 10)):
        reply = ask(messages)
        command = reply["content"].strip()
        if command == "done":
            break
        messages += [reply, {"role": "user", "content": run(command)}]


def run(command):
    """Runs a command; returns its output and exit code, without times or absolute paths."""
    try:
        ended = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, errors="replace", timeout=30
        )
    except subprocess.TimeoutExpired:
        return "the command took longer than 30 s"
    except ValueError as error:  # it holds a NUL
        return f"no command: {error}"
    shown = (ended.stdout + ended.stderr).replace(os.getcwd(), ".")
    return f"{shown[-LONGEST:]}[exit {ended.returncode}]"


def ask(messages):
    """Asks for the next reply."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)["choices"][0]["message"]
