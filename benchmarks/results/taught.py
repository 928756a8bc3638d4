"""A policy with the environment's own reflections: a control for the quality of reflections."""

import json
import re
from collections.abc import Sequence

from envs.base import Demonstrating
from learner.warmup.lessons import reply
from r3l.records import Task
from r3l.rollout.env_interface import Environment
from r3l.rollout.policy_interface import Policy, Sample, SampleParams

ACTIONS = re.compile(r"^step \d+ does: (.*)$", re.M)


class Taught:
    """Samples as `policy` does, but a request for a reflection is answered by `env`: it plays the
    attempt of `task` again by the actions in the request's log, and reflects on it."""

    def __init__(self, policy: Policy, task: Task, env: Environment) -> None:
        if not isinstance(env, Demonstrating):
            raise TypeError(f"{task.env} has no teacher")
        self.policy, self.task, self.env = policy, task, env
        self.chat = policy.chat

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """The policy's response, or the teacher's reflection with log-probabilities of 0."""
        if params.json_schema is None:
            return await self.policy.sample(token_ids, params)
        self.env.reset(seed=self.task.seed, options=self.task.options)
        for action in ACTIONS.findall(self.chat.text(token_ids)):
            self.env.step(action)
        return reply(self.chat, json.dumps(self.env.reflection(), separators=(",", ":")))
