"""An agent of Harbor beside its container, as terminus-2 is: each reply is a command."""

import json
import os
import urllib.request

from harbor.agents.base import BaseAgent


class HostAgent(BaseAgent):
    @staticmethod
    def name():
        return "r3l-host-agent"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        messages = [{"role": "user", "content": instruction}]
        for _ in range(3):
            reply = ask(messages)
            done = await environment.exec(reply["content"])
            messages += [reply, {"role": "user", "content": f"{done.stdout}[{done.return_code}]"}]


def ask(messages):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)["choices"][0]["message"]
