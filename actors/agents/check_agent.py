"""Checks an agent without a model: plays some of its tasks twice and compares the two tapes.

    r3l-agent check agent.yaml [KEY=VALUE …]

The replies are made up. They call each tool once, with arguments that fit its schema. After that,
they have the shape that the request asks for, or repeat the newest text if it asks for none. A
third attempt gets empty replies, which should earn nothing. The chat template comes from the run's
model. actors.agents.check_with_model plays a task with a model.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actors.agents.agent_attempt import AgentEnvironment, agents_served
from actors.agents.trained_calls import asked_words, trained_words
from actors.dialects.chat_completions import AgentRequest
from actors.gateway.call_tree import Node
from actors.gateway.grammars import allowed_tools
from actors.gateway.parsers import ReplyReader, reader_of
from actors.grammars.schema_example import NoExample, example
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l.errors import EnvironmentFailed, EpisodeError
from r3l.records import Task
from r3l.rollout.agent_chat import tool_call
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_calls import guarded
from r3l.rollout.env_interface import Playable
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.config import RunConfig
from r3l.views.tape import TapedCall, first_difference, read_tape

TASKS = 3
EQUAL, ALIKE = "both attempts are equal", "both attempts failed alike"
NOTHING_EARNED = "reward 0, as a made-up reply is seldom right: the agent ran and was graded"
CACHED = (
    "; a cache may have answered what only one attempt asked: turn off the client's cache of "
    "replies, or keep it below $XDG_CACHE_HOME, which is empty in each attempt"
)
SILENT_CALLS, SILENT_S = 8, 60.0
"""Limits of an attempt whose replies are empty."""
LONGEST = 200
"""The most characters of the newest text that a made-up reply repeats."""


class EchoPolicy:
    """A policy without a model. It serves one attempt at a time: the attempt in `env`."""

    env: AgentEnvironment
    silent = False
    """Whether every reply is empty. The SILENT_CALLS + 1st call then finds the context full."""

    def __init__(self, chat: ChatFormat, reader: ReplyReader, context_length: int) -> None:
        self.chat, self.reader, self.context_length = chat, reader, context_length
        self.left_out: dict[str, str] = {}
        """Tools that are not called, and why no arguments can be made up for them."""

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Makes up a reply. The reply is empty if the context is full. Raises EnvironmentFailed if
        no reply is made up for the schema that the request asks for."""
        nodes = reversed(self.env.session.tree.nodes)
        node = next(n for n in nodes if n.sample is None and n.context() == [*token_ids])
        try:
            reply = "" if self.silent else self._reply(node, params)
        except NoExample as error:
            raise EnvironmentFailed(
                f"agent: it asks for a schema for which no reply can be made up: {error}; play a "
                "task with the run's model: r3l-agent check YAML --model",
                cause="no_example",
            ) from None
        ids = (*self.chat.encode(reply), self.chat.end_id)[: params.max_tokens]
        full = len(token_ids) + len(ids) > self.context_length
        full |= self.silent and len(self.env.session.tree.nodes) > SILENT_CALLS
        ids = () if full else ids
        return Sample(ids, (0.0,) * len(ids), 0, 0, "overflow" if full else "stop")

    def _reply(self, node: Node, params: SampleParams) -> str:
        asked = node.asked
        assert asked is not None
        if params.json_schema is not None:
            return json.dumps(example(params.json_schema))
        if asked.choice != "none" and (call := self._call(node, asked)):
            reply = {"role": "assistant", "content": "", "tool_calls": [call]}
            return self.reader.written(reply, node.tools)
        if asked.choices:
            return asked.choices[0]
        if asked.json_schema is not None:
            return json.dumps(example(asked.json_schema))
        return str(node.messages[-1].get("content") or "")[:LONGEST] if node.messages else "go on"

    def _call(self, node: Node, asked: AgentRequest) -> dict[str, Any] | None:
        """Makes up a call of a tool that the conversation has not called yet, or of any tool if the
        request forces a call. Notes tools whose arguments cannot be made up."""
        tools, forced = allowed_tools(asked), asked.choice != "auto"
        made = [call["function"]["name"] for n in node.chain()
                for call in n.reply.get("tool_calls", ())]  # fmt: skip
        waiting = [tool for tool in tools if tool["function"]["name"] not in made]
        if forced and not waiting:
            waiting = [*tools][len(made) % len(tools) :]
        for tool in waiting:
            name, schema = tool["function"]["name"], tool["function"].get("parameters")
            try:
                arguments = example(schema or {"type": "object"})
            except NoExample as error:
                if forced and tool is waiting[-1]:
                    raise
                self.left_out[name] = str(error)
            else:
                return tool_call(name, arguments, f"abcdefg{len(made):02}")
        return None


async def check_agent(config: RunConfig, chat: ChatFormat) -> AsyncIterator[tuple[str, bool]]:
    """Plays each task twice. Yields (report line, whether both attempts got a reward). Then plays
    the task with empty replies, and yields a note if they earn something."""
    reader = reader_of(chat, config.actor.agent)
    policy = EchoPolicy(chat, reader, config.actor.max_model_len)
    async with (
        environments_of_all(config.env, 1) as made,
        agents_served(made, config, policy) as make_env,
    ):
        for task in tasks_of_all(config.env, "train", TASKS):
            attempts = []
            for _ in range(2):
                env = make_env(task)
                assert isinstance(env, AgentEnvironment)
                policy.env = env
                attempts.append(await play_attempt(env, task, config))
            passed = all(attempt.reward is not None for attempt in attempts)
            trained = trained_words(attempts[-1].calls, config.actor.agent.train)
            asked = asked_words(policy.env.session.names)
            said = f"{trained if passed else 'not trained'}; {asked}"
            compared = _compared(attempts, config.actor.agent.ignore, said)
            yield f"task {task.task_id}: {compared}", passed
            for name, why in policy.left_out.items():
                yield (
                    f"note: task {task.task_id}: the tool {name} is not called, as no arguments "
                    f"can be made up for it: {why}",
                    True,
                )
            policy.left_out.clear()
            if passed and (paid := await _paid_for_nothing(policy, make_env, task, config)):
                earned = " and ".join(dict.fromkeys(f"{each.reward:g}" for each in attempts))
                yield (
                    f"note: task {task.task_id}: empty replies earn {paid:g}, made-up ones "
                    f"{earned}; the reward may pay for nothing, so look at how it is computed",
                    True,
                )


async def _paid_for_nothing(
    policy: EchoPolicy, make_env: Callable[[Task], Playable], task: Task, config: RunConfig
) -> float:
    """Returns the reward of an attempt whose replies are all empty. Returns 0 if it earns nothing,
    fails or takes longer than SILENT_S."""
    env = make_env(task)
    assert isinstance(env, AgentEnvironment)
    policy.env, policy.silent = env, True
    try:
        async with asyncio.timeout(SILENT_S):
            reward = (await play_attempt(env, task, config)).reward
    except TimeoutError:
        reward = None
    finally:
        policy.silent = False
    return max(reward or 0.0, 0.0)


@dataclass(frozen=True)
class PlayedAttempt:
    """An attempt: its outcome in words, its reward if it has one, and its calls. If it has a
    reward, the calls are those of its record."""

    outcome: str
    reward: float | None
    calls: list[TapedCall]


async def play_attempt(env: AgentEnvironment, task: Task, config: RunConfig) -> PlayedAttempt:
    """Plays an attempt with the run's sampling parameters."""
    tokens = config.actor.max_response_tokens or env.spec.max_response_tokens
    params = SampleParams(tokens, temperature=config.actor.temperature)
    try:
        played = await env.play_with_agent(task, 0, lambda step: params)
        return PlayedAttempt(
            f"reward {played.reward:g}", played.reward, read_tape(played.extra.tape)
        )
    except EpisodeError as error:
        session = getattr(env, "session", None)  # none if its start failed
        return PlayedAttempt(f"failed: {error}", None, session.tree.tape() if session else [])
    finally:
        await guarded(env.close)


def _compared(attempts: Sequence[PlayedAttempt], ignore: Sequence[str], trained: str) -> str:
    """Returns the calls of the first attempt, what is trained, the outcomes of both attempts, and
    their first difference."""
    one, other = ([call for call in each.calls if not call.model] for each in attempts)
    outcomes = (NOTHING_EARNED if each.reward == 0 else each.outcome for each in attempts)
    compared = EQUAL if any(each.reward is not None for each in attempts) else ALIKE
    if difference := first_difference(one, other, ignore):
        cached = len(one) != len(other) and any(each.reward is not None for each in attempts)
        compared = f"the second attempt differs: {difference}{CACHED * cached}"
    return f"{_calls(one)}; {trained}; {', then '.join(dict.fromkeys(outcomes))}; {compared}"


def _calls(tape: Sequence[TapedCall]) -> str:
    tools = Counter(
        call["function"]["name"] for made in tape for call in made.reply.get("tool_calls", ())
    )
    used = ", ".join(f"{name} {count}" for name, count in tools.items())
    roots = sum(call.parent < 0 for call in tape)
    made = f"{len(tape)} calls in {roots} conversations with made-up replies"
    return f"{made}, tools called: {used or 'none'}"
