"""A calculator agent with the plain openai client: pip install openai

r3l-launch --config examples/agents/calculator.yaml --run sums env.options.python=PYTHON
"""

import json
import os
import re
from typing import Any

from openai import OpenAI

NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
PARAMETERS = {"type": "object", "properties": NUMBERS, "required": ["a", "b"]}
TOOL: Any = {"name": "multiply", "description": "Multiplies a and b.", "parameters": PARAMETERS}


def play(task: dict[str, Any]) -> dict[str, float]:
    """Plays one task; returns its reward."""
    client = OpenAI()
    messages: list[Any] = [
        {"role": "system", "content": "Use the tool, then answer with the number."},
        {"role": "user", "content": task["question"]},
    ]
    for _ in range(8):
        answer = client.chat.completions.create(
            model="policy", messages=messages, tools=[{"type": "function", "function": TOOL}]
        )
        reply: Any = answer.choices[0].message
        messages.append(reply)
        for call in reply.tool_calls or ():
            given = json.loads(call.function.arguments)
            product = str(given["a"] * given["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": product})
        if not reply.tool_calls:
            break
    # The last number, not any: nonsense that has all digits in it is not right.
    numbers = re.findall(r"-?\d+", (reply.content or "").replace(",", ""))
    return {"reward": float(numbers[-1:] == [str(task["answer"])])}


if __name__ == "__main__":
    print(json.dumps(play(json.loads(os.environ["R3L_TASK"]))))
