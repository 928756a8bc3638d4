"""google-adk through litellm: an agent with a tool."""

import asyncio
import json
import os
import sys

from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


def multiply(a: int, b: int) -> int:
    """Multiplies a and b."""
    return a * b


async def main() -> None:
    model = LiteLlm("openai/policy", api_base=os.environ["OPENAI_BASE_URL"])
    agent = Agent(name="x", model=model, instruction="Use the tool.", tools=[multiply])
    runner = InMemoryRunner(agent, app_name="x")
    session = await runner.session_service.create_session(app_name="x", user_id="u")
    asked = types.Content(role="user", parts=[types.Part(text="What is 12 times 13?")])
    mode = StreamingMode.SSE if "stream" in sys.argv else StreamingMode.NONE
    said = ""
    async for event in runner.run_async(
        user_id="u",
        session_id=session.id,
        new_message=asked,
        run_config=RunConfig(streaming_mode=mode),
    ):
        if event.is_final_response() and event.content:
            said = "".join(part.text or "" for part in event.content.parts)
    print(json.dumps({"reward": float("156" in said)}))


asyncio.run(main())
