"""A server of the real package openenv-core:  python openenv_server.py words|tools

`words`: say the word that the first observation shows. `tools`: the same with a tool.
"""

import random
import sys

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Said(Action):
    word: str


class Heard(Observation):
    text: str = ""


class Words(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, shout=False, **more):
        self.word = random.Random(seed).choice(["red", "green", "blue"])
        self.word = self.word.upper() if shout else self.word
        return Heard(text=f"Say {self.word}.")

    def step(self, action, timeout_s=None, **more):
        if action.word == "crash":
            raise RuntimeError("it is broken")
        right = action.word == self.word
        return Heard(text="yes" if right else "no", reward=float(right), done=right)

    @property
    def state(self):
        return State()


if __name__ == "__main__":
    app = create_fastapi_app(Words, Said, Heard, max_concurrent_envs=4)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
