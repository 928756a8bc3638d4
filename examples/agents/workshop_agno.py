"""The workshop, played by an agno agent: pip install agno openai numpy msgspec"""

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat
from workshop_row import Row


def play(task):
    """Plays one row of stations; returns the share of right tools."""
    row = Row(task)
    agent = Agent(
        model=OpenAIChat(id="policy"),
        system_message=row.system,
        db=InMemoryDb(),
        add_history_to_context=True,
        num_history_runs=100,
        telemetry=False,
    )
    while row.goes_on:
        row.act(agent.run(row.observation, session_id="row").content)
    return row.result()
