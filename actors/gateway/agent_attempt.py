"""Plays attempts: starts the agent, waits for its end, grades it and makes the record.

open a session ─► start the agent ─► calls … ─► it ends, or posts its result, or takes too long
                                                   │
record ◄── reward: posted, of the grader, or its last line ◄──┘
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from actors.gateway.attempt_record import Outcome, trajectory
from actors.gateway.parsers import ReplyReader
from actors.gateway.session import Session
from actors.gateway.web_app import WebApp
from r3l.actor_metrics import ActorMetrics
from r3l.config import RunConfig
from r3l.errors import EnvironmentFailed
from r3l.records import LARGEST_REWARD, MOST_PARTS, PART, Task, Trajectory
from r3l.rollout.agent_chat import AgentChat
from r3l.rollout.attempt import ParamsOfStep
from r3l.rollout.env_calls import guarded, read_step
from r3l.rollout.interfaces import Environment, Policy
from r3l.settings.actor import AgentConfig
from r3l.views.tape import read_tape

NAME = "agent"

MakeEnv = Callable[[Task], Environment]


@asynccontextmanager
async def agents_served(
    make_env: MakeEnv, config: RunConfig, policy: Policy, metrics: ActorMetrics | None = None
) -> AsyncIterator[MakeEnv]:
    """Yields a function that makes the environment of a task. If the run has the environment
    `agent`, its attempts are played through an HTTP server, which ends with this context.

    Raises UserError if the chat template or a parser does not fit, or the port is taken.
    """
    if NAME not in config.env.names:
        yield make_env
        return
    settings = config.actor.agent
    reader = ReplyReader(AgentChat(policy.chat), settings.tool_parser, settings.reasoning_parser)
    sessions: dict[str, Session] = {}
    async with WebApp(sessions).served(settings.host, settings.port) as url:
        gateway = Gateway(url, sessions, policy, reader, settings, metrics or ActorMetrics())

        def make(task: Task) -> Environment:
            env = make_env(task)
            return AgentEnvironment(env, gateway) if env.spec.name == NAME else env

        yield make


@dataclass(frozen=True)
class Gateway:
    """A running server, its sessions by key, and what they sample with."""

    url: str
    sessions: dict[str, Session]
    policy: Policy
    reader: ReplyReader
    settings: AgentConfig
    metrics: ActorMetrics


class AgentEnvironment:
    """Implements `r3l.rollout.interfaces.PlayedByAgent` around the environment `agent`."""

    def __init__(self, env: Environment, gateway: Gateway) -> None:
        self.env, self.gateway, self.spec = env, gateway, env.spec
        self.state: dict[str, Any] = {}
        self.reset, self.step, self.close = env.reset, env.step, env.close

    async def play_with_agent(self, task: Task, slot: int, params: ParamsOfStep) -> Trajectory:
        """Plays one attempt. Raises EnvironmentFailed with the causes of docs/agents.md, and
        whatever the engine raised."""
        gateway, settings = self.gateway, self.gateway.settings
        session = Session(task, gateway.policy, gateway.reader, params, gateway.metrics)
        gateway.sessions[session.key] = session
        gateway.metrics.agent["attempts"] += 1
        try:
            outcome = await self._outcome(session)
            played = trajectory(
                session.tree,
                outcome,
                role="base",
                slot=slot,
                temperature=session.temperature,
                train=settings.train,
                tape=session.tape(),
            )
            gateway.metrics.agent["segments"] += len(played.conversations())
            return played
        finally:
            del gateway.sessions[session.key]
            session.close()

    async def _outcome(self, session: Session) -> Outcome:
        """Plays until the agent has ended, and grades it."""
        task = session.task
        await guarded(lambda: self.env.reset(seed=task.seed, options=dict(task.options)))
        state = await self._run(session, {"start": self._variables(session)})
        session.end()
        if session.problem is not None:
            raise session.problem
        late, posted = state is None, session.result
        if posted is None and state is not None and state["exit"] != 0:
            raise EnvironmentFailed(
                f"the agent ended with exit code {state['exit']}: {state['stderr']}",
                cause="agent_exit",
            )
        if late and self.gateway.settings.at_timeout == "fail":
            raise EnvironmentFailed(
                f"the agent took longer than {self.gateway.settings.timeout_s:g} s "
                "(actor.agent.timeout_s); its process was killed",
                cause="agent_timeout",
            )
        if not session.calls:
            raise EnvironmentFailed(
                "the agent ended without a call; it must call the policy at OPENAI_BASE_URL",
                cause="agent_no_calls",
            )
        finish = "context_overflow" if session.full else "truncated" if late else "terminated"
        if posted is None:
            posted = await self._graded(session, state or self.state)
        return outcome_of(posted, self.spec.success_threshold, finish)

    def _variables(self, session: Session) -> dict[str, str]:
        url = self.gateway.url
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": session.key,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": session.key,
            "R3L_URL": url,
            "NO_PROXY": self.gateway.settings.host,  # a proxy must not get these calls
            "OPENAI_AGENTS_DISABLE_TRACING": "1",  # it would send them to OpenAI
        }

    async def _graded(self, session: Session, state: Mapping[str, Any]) -> Any:
        """Returns the result of the grader, or what the agent printed as its last line."""
        if not state["grader"]:
            return _last_line(state.get("stdout", ""), "no_reward", "the agent")
        calls = [
            {"messages": call.messages, "reply": call.reply} for call in read_tape(session.tape())
        ]
        graded = await self._run(None, {"grade": calls})
        if graded is None or graded["exit"] != 0:
            why = "it took too long" if graded is None else graded["stderr"]
            raise EnvironmentFailed(f"the grader failed: {why}", cause="grader_failed")
        return _last_line(graded["stdout"], "grader_failed", "the grader")

    async def _run(
        self, session: Session | None, start: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Runs a process to its end, to the session's result, or to the time limit. Returns its
        last state, or None if it took too long; what still runs is killed."""
        state = await self._step(start)
        waits = [asyncio.ensure_future(_process_end(state["pid"]))]
        if session is not None:
            waits.append(asyncio.ensure_future(_set(session.changed)))
        limit = self.gateway.settings.timeout_s
        try:
            ended, _ = await asyncio.wait(waits, timeout=limit, return_when=FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if ended:
            state = await self._step({"poll": None})
        await self._step({"stop": None})
        return state if ended else None

    async def _step(self, command: Mapping[str, Any]) -> dict[str, Any]:
        action = json.dumps(command)
        answer = await guarded(lambda: self.env.step(action))
        self.state = dict(json.loads(read_step(self.spec.name, answer)[0]))
        return self.state


def outcome_of(result: Any, threshold: float, finish: str) -> Outcome:
    """Reads a result: a number, or {reward, parts, feedback} or {failed}. Raises
    EnvironmentFailed."""
    given = result if isinstance(result, dict) else {"reward": result}
    if cause := given.get("failed"):
        name = str(cause) if PART.fullmatch(str(cause)) else "agent_failed"
        raise EnvironmentFailed(f"the agent reports its failure: {cause!s:.300}", cause=name)
    reward = _number(given.get("reward"))
    if not abs(reward) <= LARGEST_REWARD:
        raise EnvironmentFailed(
            f"the result {result!r:.200} has no reward; it must be a number, or an object with "
            "reward as a number",
            cause="no_reward",
        )
    parts = given.get("parts") if isinstance(given.get("parts"), dict) else {}
    named = {
        name: _number(value)
        for name, value in (parts or {}).items()
        if PART.fullmatch(name) and abs(_number(value)) <= LARGEST_REWARD
    }
    return Outcome(
        reward / threshold,
        dict(list(named.items())[:MOST_PARTS]),
        str(given.get("feedback") or ""),
        finish,
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _last_line(line: str, cause: str, who: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise EnvironmentFailed(
            f"{who}'s last line is {line!r:.200}; it must be its result as JSON, such as "
            '{"reward": 1.0}',
            cause=cause,
        ) from None


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _process_end(pid: int) -> None:
    """Waits until a process of this machine has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
