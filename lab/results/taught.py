"""A policy with reflections, or attempts, that the environment wrote: controls for guidance."""

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from envs.base import Demonstrating, Skill
from envs.builtin.matching import Matching
from learner.warmup.lessons import reply
from r3l.records import Task
from r3l.rollout.env_interface import Environment
from r3l.rollout.policy_interface import Policy, Sample, SampleParams

ACTIONS = re.compile(r"^step \d+ does: (.*)$", re.M)
FACT = re.compile(r"(\w+) needs (\w+)")
Guidance = Literal["", "useful", "useless", "harmful", "another", "demonstrated"]
"""The policy's own reflections (""), or those of the environment, which advise the right answer,
nothing about it, a wrong one, or what another task needs. Their outcome and pivot are always right.
`demonstrated`: the environment's demonstrator plays the attempts instead, without a mistake."""
OF_KNOWN_WORTH: tuple[Guidance, ...] = ("useful", "useless", "harmful")


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
        self.begun = False

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """The policy's response, or the teacher's reflection with log-probabilities of 0."""
        if self.guidance == "demonstrated":
            return self._demonstrated()
        if params.json_schema is None:
            return await self.policy.sample(token_ids, params)
        actions = ACTIONS.findall(self.chat.text(token_ids))
        thought = self._thought(self.task.seed, actions)
        if suggestion := thought["improvement_suggestion"]:
            if self.guidance == "another":
                other = self._thought(self.task.seed + 1, actions)
                thought["improvement_suggestion"] = other["improvement_suggestion"] or suggestion
            elif self.guidance != "useful":
                thought["improvement_suggestion"] = self._misled(suggestion)
        return reply(self.chat, json.dumps(thought, separators=(",", ":")))

    def _thought(self, seed: int, actions: Sequence[str]) -> dict[str, Any]:
        """Returns the teacher's reflection on the task of a seed, played by these actions."""
        self.env.reset(seed=seed, options=self.task.options)
        for action in actions:
            self.env.step(action)
        return self.env.reflection()

    def _demonstrated(self) -> Sample:
        """Returns the demonstrator's next response. Only for groups of one attempt, which is
        sampled step by step."""
        if not self.begun:
            self.env.reset(seed=self.task.seed, options=self.task.options)
            self.begun = True
        action = self.env.demonstrate(Skill(), random.Random(0))
        self.env.step(action)
        return reply(self.chat, action)

    def _misled(self, suggestion: str) -> str:
        """The suggestion without its facts, or with the next answer of the world in each fact."""
        assert isinstance(self.env, Matching)
        if self.guidance == "useless":
            return f"remember not to {self.env.words.waste}"
        answers = self.env.answers
        after = dict(zip(answers, [*answers[1:], answers[0]], strict=True))
        return FACT.sub(lambda fact: f"{fact[1]} needs {after[fact[2]]}", suggestion)
