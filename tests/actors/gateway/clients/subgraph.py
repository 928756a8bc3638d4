"""LangGraph: a graph whose first node is a graph with a tool, and whose second asks once more."""

import json
import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import create_react_agent

model = ChatOpenAI(model="policy", streaming="stream" in sys.argv)


@tool
def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


def review(state: MessagesState) -> dict:
    said = state["messages"][-1].content
    asked = [SystemMessage("You review answers."), HumanMessage(f"Is this right? {said}")]
    return {"messages": [model.invoke(asked)]}


graph = StateGraph(MessagesState)
graph.add_node("solve", create_react_agent(model, [multiply], prompt="Use the tool."))
graph.add_node("review", review)
graph.add_edge(START, "solve")
graph.add_edge("solve", "review")
graph.add_edge("review", END)
result = graph.compile().invoke({"messages": [("user", "What is 12 times 13?")]})
print(json.dumps({"reward": float("156" in result["messages"][-1].content)}))
