"""A calculator agent with the OpenAI Agents SDK: pip install openai-agents"""

import json
import os
import re

from agents import Agent, Runner, function_tool


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


def main() -> None:
    task = json.loads(os.environ["R3L_TASK"])
    agent = Agent(
        name="calculator",
        instructions="Use the tool, then answer with the number.",
        model="policy",
        tools=[multiply],
    )
    result = Runner.run_sync(agent, task["question"], max_turns=8)
    numbers = re.findall(r"-?\d+", str(result.final_output).replace(",", ""))
    print(json.dumps({"reward": float(numbers[-1:] == [str(task["answer"])])}))


if __name__ == "__main__":
    main()
