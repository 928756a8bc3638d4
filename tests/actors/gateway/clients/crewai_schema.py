"""CrewAI: a task whose result has a shape."""

import json
import os
import sys

from crewai import LLM, Agent, Crew, Task
from pydantic import BaseModel


class Shape(BaseModel):
    a: int


llm = LLM(
    model="openai/policy", base_url=os.environ["OPENAI_BASE_URL"], stream="stream" in sys.argv
)
llm.call("hi")
agent = Agent(role="calculator", goal="multiply", backstory="you multiply", llm=llm)
task = Task(description="json", expected_output="a number", agent=agent, response_model=Shape)
result = Crew(agents=[agent], tasks=[task], tracing=False).kickoff()
print()
print(json.dumps({"reward": float("a" in str(result))}))
