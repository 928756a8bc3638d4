"""LangGraph over /v1/responses: a graph with a tool."""

import json
import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


model = ChatOpenAI(model="policy", use_responses_api=True, streaming="stream" in sys.argv)
graph = create_react_agent(model, [multiply], prompt="Use the tool.")
asked = {"messages": [("user", "What is 12 times 13?")]}
if "stream" in sys.argv:
    *_, result = graph.stream(asked, stream_mode="values")
else:
    result = graph.invoke(asked)
print(json.dumps({"reward": float("156" in result["messages"][-1].text)}))
