"""A policy with reflections that the environment wrote: controls for the quality of guidance."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Literal

from envs.base import Demonstrating
from envs.builtin.matching import Matching
from learner.warmup.lessons import reply
from r3l.records import Task
from r3l.rollout.env_interface import Environment
from r3l.rollout.policy_interface import Policy, Sample, SampleParams

ACTIONS = re.compile(r"^step \d+ does: (.*)$", re.M)
FACT = re.compile(r"(\w+) needs (\w+)")
Guidance = Literal["", "useful", "useless", "harmful"]
"""The policy's own reflections (""), or those of the environment, which advise the right answer,
nothing about it, or a wrong one. Their outcome and pivot are always right."""


def taught(
    policy: Policy,
    task: Task,
    make_env: Callable[[], Environment],
    guidance: Guidance,
) -> Policy:
    """`policy` with the environment's reflections on `task`, or as it is if `guidance` is ""."""
    return Taught(policy, task, make_env(), guidance) if guidance else policy


class Taught:
    """Samples as `policy` does, but a request for a reflection is answered by `env`: it plays the
    attempt of `task` again by the actions in the request's log, and reflects on it."""

    def __init__(self, policy: Policy, task: Task, env: Environment, guidance: Guidance) -> None:
        if not isinstance(env, Demonstrating):
            raise TypeError(f"{task.env} has no teacher")
        self.policy, self.task, self.env, self.guidance = policy, task, env, guidance
        self.chat = policy.chat

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """The policy's response, or the teacher's reflection with log-probabilities of 0."""
        if params.json_schema is None:
            return await self.policy.sample(token_ids, params)
        self.env.reset(seed=self.task.seed, options=self.task.options)
        for action in ACTIONS.findall(self.chat.text(token_ids)):
            self.env.step(action)
        thought = self.env.reflection()
        if (suggestion := thought["improvement_suggestion"]) and self.guidance != "useful":
            thought["improvement_suggestion"] = self._misled(suggestion)
        return reply(self.chat, json.dumps(thought, separators=(",", ":")))

    def _misled(self, suggestion: str) -> str:
        """The suggestion without its facts, or with the next answer of the world in each fact."""
        assert isinstance(self.env, Matching)
        if self.guidance == "useless":
            return f"remember not to {self.env.words.waste}"
        answers = self.env.answers
        after = dict(zip(answers, [*answers[1:], answers[0]], strict=True))
        return FACT.sub(lambda fact: f"{fact[1]} needs {after[fact[2]]}", suggestion)
