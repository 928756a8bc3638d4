"""CrewAI: a crew of one agent with a tool."""

import json
import os
import sys

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


@tool("multiply")
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


llm = LLM(
    model="openai/policy", base_url=os.environ["OPENAI_BASE_URL"], stream="stream" in sys.argv
)
agent = Agent(
    role="calculator", goal="multiply", backstory="you multiply", llm=llm, tools=[multiply]
)
task = Task(description="What is 12 times 13?", expected_output="a number", agent=agent)
result = Crew(agents=[agent], tasks=[task], tracing=False).kickoff()
print()
print(json.dumps({"reward": float("156" in str(result))}))
