"""google-adk through litellm: structured output, after a plain reply."""

import asyncio
import json
import os
import sys

from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import BaseModel


class Shape(BaseModel):
    a: int


async def said(text: str, **more: object) -> str:
    model = LiteLlm("openai/policy", api_base=os.environ["OPENAI_BASE_URL"])
    runner = InMemoryRunner(Agent(name="x", model=model, **more), app_name="x")
    session = await runner.session_service.create_session(app_name="x", user_id="u")
    asked = types.Content(role="user", parts=[types.Part(text=text)])
    mode = StreamingMode.SSE if "stream" in sys.argv else StreamingMode.NONE
    given = {"new_message": asked, "run_config": RunConfig(streaming_mode=mode)}
    last = ""
    async for event in runner.run_async(user_id="u", session_id=session.id, **given):
        if event.is_final_response() and event.content:
            last = "".join(part.text or "" for part in event.content.parts)
    return last


async def main() -> None:
    await said("hi")
    shaped = json.loads(await said("json", output_schema=Shape))
    print(json.dumps({"reward": float(isinstance(shaped["a"], int))}))


asyncio.run(main())
