"""Checks an agent without a model: plays some of its tasks twice and compares the two tapes.

    r3l-agent check agent.yaml [KEY=VALUE …]

The replies are made up. They call each tool once, with arguments that fit its schema. Then they
repeat the newest text. A third attempt gets empty replies, which should earn nothing. The chat
template comes from the run's model.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from actors.agents.agent_attempt import AgentEnvironment, agents_served
from actors.gateway.call_tree import Node
from actors.gateway.grammars import parts_of
from actors.gateway.parsers import ReplyReader, reader_of
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l.errors import EpisodeError
from r3l.records import Task
from r3l.rollout.agent_chat import tool_call
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_calls import guarded
from r3l.rollout.env_interface import Playable
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.config import RunConfig
from r3l.views.tape import TapedCall, first_difference

TASKS = 3
EQUAL = "both attempts are equal"
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

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Makes up a reply. The reply is empty if the context is full."""
        node = next(n for n in self.env.session.tree.nodes if n.context() == [*token_ids])
        ids = (*self.chat.encode(self._reply(node, params)), self.chat.end_id)[: params.max_tokens]
        full = len(token_ids) + len(ids) > self.context_length
        full |= self.silent and len(self.env.session.tree.nodes) > SILENT_CALLS
        ids = () if full else ids
        return Sample(ids, (0.0,) * len(ids), 0, 0, "overflow" if full else "stop")

    def _reply(self, node: Node, params: SampleParams) -> str:
        if self.silent:
            return ""
        if params.json_schema is not None:
            return json.dumps(example(params.json_schema))
        tools = node.tools
        made = sum(len(n.reply.get("tool_calls", ())) for n in node.chain())
        calls, shape = parts_of(params.structural_tag) if params.structural_tag else (None, None)
        if shape and (made >= len(tools) or not calls):
            return _shaped(shape)
        if made < len(tools) or calls:
            shape = tools[made % len(tools)]["function"]
            arguments = example(shape.get("parameters") or {"type": "object"})
            call = tool_call(shape["name"], arguments, f"abcdefg{made:02}")
            reply = {"role": "assistant", "content": "", "tool_calls": [call]}
            return self.reader.written(reply, tools)
        return str(node.messages[-1].get("content") or "")[:LONGEST] if node.messages else "go on"


def _shaped(shape: dict[str, Any]) -> str:
    """Makes up a text of a shape (actors.gateway.grammars)."""
    if shape["type"] == "json_schema":
        return json.dumps(example(shape["json_schema"]))
    return str(shape["elements"][0]["value"])


def example(schema: dict[str, Any]) -> Any:
    """Makes up a value that fits a JSON schema."""
    for name in ("enum", "anyOf", "oneOf"):
        if options := schema.get(name):
            return options[0] if name == "enum" else example(options[0])
    kind = schema.get("type", "string")
    if kind == "object":
        return {name: example(own) for name, own in schema.get("properties", {}).items()}
    if kind == "array":
        return [example(schema.get("items") or {})]
    return {"integer": 1, "number": 1.0, "boolean": True, "null": None}.get(kind, "text")


async def check_agent(config: RunConfig, chat: ChatFormat) -> AsyncIterator[tuple[str, bool]]:
    """Plays each task twice. Yields (report line, whether both attempts got a reward). Then plays
    it with empty replies, and yields a note if they earn something."""
    reader = reader_of(chat, config.actor.agent)
    policy = EchoPolicy(chat, reader, config.actor.max_model_len)
    async with (
        environments_of_all(config.env, 1) as made,
        agents_served(made, config, policy) as make_env,
    ):
        for task in tasks_of_all(config.env, "train", TASKS):
            outcomes, tapes = [], []
            for _ in range(2):
                env = make_env(task)
                assert isinstance(env, AgentEnvironment)
                policy.env = env
                outcomes.append(await _outcome(env, task, config))
                tapes.append(env.session.tree.tape())
            texts = [text for text, _ in outcomes]
            how = texts[0] if len({*texts}) == 1 else " and ".join(texts)
            passed = all(reward is not None for _, reward in outcomes)
            difference = first_difference(tapes[0], tapes[1], config.actor.agent.ignore)
            compared = f"the second attempt differs: {difference}" if difference else EQUAL
            yield f"task {task.task_id}: {_calls(tapes[0])}; {how}; {compared}", passed
            if passed and (paid := await _paid_for_nothing(policy, make_env, task, config)):
                yield (
                    f"note: task {task.task_id}: empty replies earn {paid:g}, made-up ones {how}; "
                    "the reward may pay for nothing, so look at how it is computed",
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
            _, reward = await _outcome(env, task, config)
    except TimeoutError:
        reward = None
    finally:
        policy.silent = False
    return max(reward or 0.0, 0.0)


async def _outcome(
    env: AgentEnvironment, task: Task, config: RunConfig
) -> tuple[str, float | None]:
    """Plays an attempt. Returns its outcome in words, and its reward if it has one."""
    tokens = config.actor.max_response_tokens or env.spec.max_response_tokens
    try:
        played = await env.play_with_agent(task, 0, lambda step: SampleParams(tokens))
        return f"reward {played.reward:g}", played.reward
    except EpisodeError as error:
        return f"failed: {error}", None
    finally:
        await guarded(env.close)


def _calls(tape: Sequence[TapedCall]) -> str:
    tools = Counter(
        call["function"]["name"] for made in tape for call in made.reply.get("tool_calls", ())
    )
    used = ", ".join(f"{name} {count}" for name, count in tools.items())
    roots = sum(call.parent < 0 for call in tape)
    return f"{len(tape)} calls in {roots} conversations, tools called: {used or 'none'}"
