"""Plays attempts: starts the agent, waits for its end, grades the attempt and makes its record.

open a session ─► start the agent ─► calls … ─► the agent ends, posts a result or takes too long
   ▲ the tape in the record, for a retry or             │
   │ to continue the attempt of a dead actor            │
record ◄── reward: posted, graded, or printed last ◄────┘
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from signal import SIGHUP, SIGKILL, SIGTERM
from typing import Any
from urllib.parse import urlsplit

from actors.agents.attempt_record import Train, trajectory
from actors.agents.mcp_relay import McpRelay
from actors.agents.tape_reader import Replays, main_kind, player_of, repeats_tools
from actors.agents.world_state import RestoreFailed, Snapshots, World
from actors.gateway.call_tree import Node
from actors.gateway.other_models import OtherModels
from actors.gateway.parsers import ReplyReader, reader_of
from actors.gateway.recorded_call import TapePlayer
from actors.gateway.session import Session
from actors.gateway.web_app import WebApp
from envs.agents.agent import KEEPER, MAIN
from envs.agents.agent_process import ProcessState
from envs.agents.agent_steps import Outcome, failed, grade, last_line, outcome_of, run_process
from r3l.errors import EnvironmentFailed, R3LError, ReplayDiverged
from r3l.records import Task, Trajectory
from r3l.rollout.attempt import ParamsOfStep
from r3l.rollout.env_calls import guarded, raised
from r3l.rollout.env_interface import Environment, Offer, Retry
from r3l.rollout.policy_interface import Policy
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import RunConfig
from r3l.run.settings.actor import AgentConfig
from r3l.run.settings.environment import by_agent

log = logging.getLogger(__name__)

KILLED = frozenset(
    code for number in (SIGHUP, SIGKILL, SIGTERM) for code in (-number, 128 + number)
)
"""Exit codes of a process killed from outside, for example by the kernel when memory is short. A
code is minus the signal's number, or 128 plus the number if a shell reports the exit."""

MakeEnv = Callable[[Task], Environment]


class AgentKilled(EnvironmentFailed):
    """The agent's process was killed from outside."""


@dataclass
class Gateway:
    """One gateway for all attempts of an actor. `sessions`: the sessions at `url`, by API key."""

    policy: Policy
    reader: ReplyReader
    metrics: ActorMetrics
    settings: AgentConfig
    sessions: dict[str, Session]
    url: str
    replays: Replays
    snapshots: Snapshots


@asynccontextmanager
async def agents_served(
    make_env: MakeEnv, config: RunConfig, policy: Policy, metrics: ActorMetrics | None = None
) -> AsyncIterator[MakeEnv]:
    """Yields a function that makes a task's environment. If the run has agents, also serves the
    policy over HTTP. Raises UserError if the chat template, a parser, the port or an API key is
    unusable."""
    if not config.env.has_agents:
        yield make_env
        return
    settings, counts, sessions = config.actor.agent, metrics or ActorMetrics(), dict[str, Session]()
    reader = reader_of(policy.chat, settings)
    replays = Replays(settings.max_divergences, settings.ignore)
    app = WebApp(sessions, OtherModels(settings.models))
    async with app.served(settings.host, settings.port) as url:
        snapshots = Snapshots(settings.max_divergences, counts.agent)
        gateway = Gateway(policy, reader, counts, settings, sessions, url, replays, snapshots)

        def make(task: Task) -> Environment:
            env = make_env(task)
            return AgentEnvironment(env, gateway) if by_agent(env.spec.name) else env

        try:
            yield make
        finally:
            snapshots.close()


class AgentEnvironment:
    """Implements `r3l.rollout.env_interface.PlayedByAgent` for one attempt. Each process of the
    agent gets a new session. `kept`: seconds of sampling up to the last save of progress."""

    session: Session

    def __init__(self, env: Environment, gateway: Gateway) -> None:
        self.env: Any = env  # it has the methods of envs.agents.agent
        self.spec, self.gateway = env.spec, gateway
        self.settings, self.counts = gateway.settings, gateway.metrics.agent
        self.reset, self.step, self.close = env.reset, env.step, env.close

    async def play_with_agent(
        self,
        task: Task,
        slot: int,
        params: ParamsOfStep,
        retry: Retry | None = None,
        left: Trajectory | None = None,
        offer: Offer | None = None,
        retried: bool = False,
    ) -> Trajectory:
        """Plays one attempt. If the agent is killed from outside, starts it once more. In a base
        attempt, the new process gets the earlier replies. A retry may restore a saved world. If the
        restore fails, or the agent fails afterwards, plays the retry again without a restore.
        Raises EpisodeError (docs/agents.md) or the engine's error."""
        self.slot, self.retry, self.offer, self.retried = slot, retry, offer, retried
        world = taken = self.gateway.snapshots.take(retry.base) if retry else None
        killed, broken = False, ""
        try:
            while True:
                try:
                    played = await self._play(task, params, left, world)
                    if taken and broken:  # without the copy it went well
                        taken.snapshots.failed("restore_failed", broken)
                    return played
                except AgentKilled as error:
                    if killed:
                        raise
                    killed = True
                    log.warning("%s; it is started once more", error)
                    self.counts["killed"] += 1
                    if not retry and any(n.sample and not n.taped for n in self.session.tree.nodes):
                        with suppress(EnvironmentFailed):  # there is no call to train yet
                            left = self._progress()
                except EnvironmentFailed as error:
                    after = world and world.restored and error.cause == "agent_exit"
                    if not after and not isinstance(error, RestoreFailed):
                        raise
                    broken = f"after a restore {error}" if after else ""
                    log.warning("%s; the retry is played without the state", error)
                    world = None
        except ReplayDiverged as error:
            self.counts["diverged"] += 1
            self.gateway.replays.diverged(error)
            raise
        except R3LError:
            raise
        except Exception as error:  # whatever an agent printed must not end the actor
            raise raised(error) from error
        finally:
            if taken:
                await taken.remove()

    async def _play(
        self, task: Task, params: ParamsOfStep, left: Trajectory | None, world: World | None
    ) -> Trajectory:
        """Plays one attempt with one agent process. A retry restores `world` at its pivot."""
        self.counts["attempts"] += 1
        gateway, retry, session = self.gateway, self.retry, self._opened(task, params, left)
        self.session, self.kept, saved = session, 0.0, None
        if world:
            world.restored = False
        relay = McpRelay(session, self._serve)
        gateway.sessions[session.key] = session
        gateway.metrics.agents_running = len(gateway.sessions)
        try:
            secret = [server.key for server in self.settings.models.values()]
            options = task.options | {"secret": secret}
            reset = await guarded(lambda: self.env.reset(seed=task.seed, options=options))
            given = json.loads(reset[0])
            relay.urls, session.answer_mcp = given["mcp"], relay.answer
            tape = session.tape
            if tape and world and tape.pivot in world.saved:
                tape.stateful = given["keeps_all"] and repeats_tools(tape)
                session.at_call = partial(self._restore, tape, world)
            elif self.retried and given["keeps"]:
                saved = gateway.snapshots.new(self._run_state)
                session.at_call = partial(self._save, saved) if saved else None
            outcome = await self._outcome(given)
            made = self._record(outcome, self.settings.train)
            if retry and tape:
                gateway.replays.check(made, retry)
            if world and world.restored:
                gateway.snapshots.in_a_row["restore_failed"] = 0
            if saved:
                await gateway.snapshots.keep(saved, made)
                saved = None
        finally:
            await relay.close()
            if left:
                self._count_continued()
            session.close()
            del gateway.sessions[session.key]
            gateway.metrics.agents_running = len(gateway.sessions)
            if saved:
                await saved.remove()
        self.counts["segments"] += len(made.conversations())
        self.counts["restarts"] += retry is not None and tape is None
        return made

    def _opened(self, task: Task, params: ParamsOfStep, left: Trajectory | None) -> Session:
        """Makes the session for a new process of the agent. Raises ReplayDiverged."""
        gateway, retry = self.gateway, self.retry
        tape = gateway.replays.player(retry) if retry else _continuation(left, params)
        return Session(
            gateway.policy,
            gateway.reader,
            gateway.metrics,
            task,
            params,
            ignore=self.settings.ignore,
            tape=tape,
            guidance=retry.guidance if retry else "",
            main=main_kind(retry.base, restarts=tape is None) if retry else None,
            keep=self._keep if self.offer else None,
        )

    async def _keep(self) -> None:
        """Offers all replies so far to the buffer. If the lease is lost, ends the attempt."""
        sampled = sum(node.seconds for node in self.session.tree.nodes if not node.taped)
        try:
            if self.offer and await self.offer(self._progress, sampled - self.kept):
                self.kept = sampled
        except EnvironmentFailed:
            return  # there is no call to train yet
        except R3LError as error:
            self.session.fail(error)

    async def _save(self, world: World, node: Node) -> None:
        """Saves the world before a call, and finishes the save even if the caller is cancelled."""
        await asyncio.shield(world.save(node.number))

    async def _restore(self, tape: TapePlayer, world: World, node: Node) -> None:
        """If `node` is the pivot, restores the world. If the restore fails, ends the attempt."""
        if node is tape.pivot_node:
            try:
                await world.restore(tape.pivot, self._run_state)
                self.session.restored.set()
            except EnvironmentFailed as error:
                self.session.fail(error)

    async def _serve(self, name: str) -> str:
        return str((await guarded(lambda: self.env.serve(name)))["folder"])

    async def _run_state(self, command: list[Any]) -> tuple[ProcessState, bool]:
        limit_s = self.settings.state_s
        return await run_process(self.env, KEEPER, lambda: self.env.keep(*command), limit_s)

    def _progress(self) -> Trajectory:
        """Makes a record of the attempt so far, with all of its conversations."""
        return self._record(Outcome(0.0, finish=""), "all")

    def _count_continued(self) -> None:
        """Counts the attempt as continued or dropped. Counts the tokens taken from the tape."""
        counts = self.gateway.metrics.partial
        samples = [node.sample for node in self.session.tree.nodes if node.taped]
        counts["continued" if samples else "dropped"] += 1
        counts["tokens"] += sum(len(sample.token_ids) for sample in samples if sample)

    def _record(self, outcome: Outcome, train: Train) -> Trajectory:
        session = self.session
        return trajectory(
            session.tree,
            outcome,
            slot=self.slot,
            temperature=session.params(0).temperature,
            train=train,
            retry=self.retry,
            at=session.pivot if self.retry else None,
            others=session.others,
        )

    async def _outcome(self, given: dict[str, Any]) -> Outcome:
        """Runs the agent to its end and grades the attempt. `given`: what `env.reset` returned."""
        session, settings = self.session, self.settings
        variables = self._variables(given["mcp"])
        state, in_time = await run_process(
            self.env, MAIN, lambda: self.env.start(variables), settings.timeout_s, session.ended
        )
        session.end()
        if session.problem is not None:
            raise session.problem
        result = session.result
        if result is None and in_time and state["exit"] != 0 and not session.full:
            code = state["exit"]
            error = AgentKilled if code in KILLED else EnvironmentFailed
            why = f"the agent ended with exit code {code}: {state['stderr']}"
            raise error(why, cause="agent_exit")
        if not in_time and settings.at_timeout == "fail":
            limit = f"{settings.timeout_s:g} s (actor.agent.timeout_s)"
            raise failed("agent_timeout", f"the agent took longer than {limit} and was killed")
        if not session.tree.nodes:
            raise failed("agent_no_calls", "the agent made no call; it must use OPENAI_BASE_URL")
        if session.tape:
            session.tape.check_met()
        finish = "terminated" if in_time else "truncated"
        if result is None and given["grader"]:
            result = await grade(self.env, session.tree.tape(), settings.timeout_s)
        elif result is None:
            result = last_line(state, "no_reward", "the agent")
        return outcome_of(
            result, self.spec.success_threshold, "context_overflow" if session.full else finish
        )

    def _variables(self, servers: Iterable[str] = ()) -> dict[str, str]:
        key, url = self.session.key, self.gateway.url
        proxied = *map(os.environ.get, ("no_proxy", "NO_PROXY")), urlsplit(url).hostname
        direct = ",".join(filter(None, proxied))
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
            "R3L_URL": url,
            "NO_PROXY": direct,  # a proxy must not get these calls
            "no_proxy": direct,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",  # it would send them to OpenAI
        } | {
            f"R3L_MCP_{name.upper().replace('-', '_')}": f"{url}/mcp/{name}/{key}"
            for name in servers
        }


def _continuation(left: Trajectory | None, params: ParamsOfStep) -> TapePlayer | None:
    """Makes a player that repeats the calls of `left`. Returns None if the calls cannot be used."""
    if left is None or left.temperature != params(0).temperature:
        return None
    try:
        return player_of(left)
    except ReplayDiverged as error:
        log.warning("a partial attempt is dropped, and its slot played afresh: %s", error)
        return None
