"""A calculator agent with LangGraph: pip install langgraph langchain-openai"""

import json
import os
import re

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


def main() -> None:
    task = json.loads(os.environ["R3L_TASK"])
    agent = create_react_agent(
        ChatOpenAI(model="policy"),
        [multiply],
        prompt="Use the tool, then answer with the number.",
    )
    asked = {"messages": [("user", task["question"])]}
    result = agent.invoke(asked, {"recursion_limit": 20})
    answer = result["messages"][-1].content
    numbers = re.findall(r"-?\d+", str(answer).replace(",", ""))
    print(json.dumps({"reward": float(numbers[-1:] == [str(task["answer"])])}))


if __name__ == "__main__":
    main()
