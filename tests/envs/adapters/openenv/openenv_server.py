"""Two environments of the real package openenv:  python openenv_server.py --port 8000

`/`: say the word that the first observation shows. `/tools`: the same with a tool.
"""

import random
import sys
import time

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import EnvironmentMetadata
from pydantic import field_validator


class Said(Action):
    word: str

    @field_validator("word")
    @classmethod
    def check(cls, word):
        if word == "unsayable":
            raise ValueError("that cannot be said")
        return word


class Heard(Observation):
    text: str = ""


class Known(State):
    word: str = ""


class Words(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, shout=False, **more):
        self.word, self.steps = random.Random(seed).choice(["red", "green", "blue"]), 0
        self.word = self.word.upper() if shout else self.word
        return Heard(text=f"Say {self.word}.")

    def step(self, action, timeout_s=None, **more):
        self.steps += 1
        if action.word == "crash":
            raise RuntimeError("it is broken")
        if action.word == "wait":
            time.sleep(3)
        if action.word == "luck":
            return Heard(text=str(random.random()))
        right = action.word == self.word
        return Heard(text="yes" if right else "no", reward=float(right), done=right)

    @property
    def state(self):
        return Known(word=self.word, step_count=self.steps)

    def get_metadata(self):
        return EnvironmentMetadata(name="Words", description="One of red, green and blue is right.")


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("words")

        @server.tool
        def say(word: str) -> str:
            """Says a word."""
            return "yes" if word == "red" else "no"

        super().__init__(server)

    def reset(self, seed=None, episode_id=None, **more):
        return Observation(metadata={"message": "Say red."})

    def _step_impl(self, action, timeout_s=None, **more):
        return Observation(metadata={"error": "use a tool"})

    @property
    def state(self):
        return State()


if __name__ == "__main__":
    app = create_fastapi_app(Words, Said, Heard, max_concurrent_envs=4, state_cls=Known)
    app.mount("/tools", create_fastapi_app(Tools, CallToolAction, CallToolObservation))
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[-1]), log_level="error")
