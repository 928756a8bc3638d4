"""The workshop, played by a LangGraph agent: pip install langgraph langchain-openai numpy msgspec

    r3l-launch --config examples/agents/workshop.yaml --run graph \
      env.options.command=examples/agents/workshop_langgraph.py:play env.options.python=PYTHON \
      learner.groups_per_step=6 learner.lr=5e-4
"""

import sys
from pathlib import Path

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

sys.path.insert(0, str(Path(__file__).parents[2]))  # the world is r3l's

from envs.builtin.workshop import Workshop

ChatOpenAI(model="policy", api_key="none")  # imports the rest of its packages once for all attempts


def play(task):
    """Plays one row of stations; returns the share of right tools."""
    model, world = ChatOpenAI(model="policy"), Workshop()
    observation, _ = world.reset(seed=task["seed"])
    replies = []

    def choose(state):
        return {"messages": model.invoke(state["messages"])}

    def act(state):
        replies.append(world.step(state["messages"][-1].content))
        return {"messages": ("user", replies[-1][0])}

    graph = StateGraph(MessagesState).add_node(choose).add_node(act).add_edge(START, "choose")
    graph.add_edge("choose", "act")
    graph.add_conditional_edges("act", lambda state: END if any(replies[-1][2:4]) else "choose")
    begin = [("system", world.spec.system_prompt), ("user", observation)]
    graph.compile().invoke({"messages": begin})
    return {"reward": sum(reply[0].startswith("it fits") for reply in replies) / 5}
