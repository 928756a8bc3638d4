"""A calculator agent with the OpenAI Agents SDK: pip install openai-agents"""

import json
import os

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
    print(json.dumps({"reward": float(str(task["answer"]) in str(result.final_output))}))


if __name__ == "__main__":
    main()
