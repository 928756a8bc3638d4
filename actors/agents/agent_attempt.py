"""Plays attempts: starts the agent, waits for its end, grades the attempt and makes its record.

open a session ─► start the agent ─► calls … ─► the agent ends, posts a result or takes too long
   ▲ the tape in the record, for a retry or             │
   │ to continue the attempt of a dead actor            │
record ◄── reward: posted, graded, or printed last ◄────┘

actors.agents.next_process decides whether another process follows one that failed.
"""

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from signal import SIGHUP, SIGKILL, SIGTERM
from typing import Any, cast
from urllib.parse import urlsplit

from actors.agents.attempt_record import Train, token_counts, trajectory
from actors.agents.mcp_relay import McpRelay
from actors.agents.next_process import AgentKilled, Next, Processes
from actors.agents.tape_reader import Replays, continuing_player, main_kind, repeats_tools
from actors.agents.world_state import Snapshots, World
from actors.gateway.call_tree import Node
from actors.gateway.other_models import OtherModels
from actors.gateway.parsers import ReplyReader, reader_of
from actors.gateway.recorded_call import ContinuingPlayer, RetryPlayer
from actors.gateway.refused_requests import RefusedRequests
from actors.gateway.session import Session
from actors.gateway.web_app import WebApp
from envs.agents.agent_runner import KEEPER, MAIN, AgentFacts, AgentRunner, Operation, ProcessState
from envs.agents.agent_steps import Outcome, failed, grade, last_line, outcome_of, run_process
from envs.agents.agent_variables import direct_hosts, fresh_names, unset_names
from r3l.errors import (
    EnvironmentFailed,
    EpisodeError,
    R3LError,
    RecordFailed,
    ReplayDiverged,
)
from r3l.notices import notice_again
from r3l.records import Task, Trajectory
from r3l.rollout.attempt import ParamsOfStep
from r3l.rollout.env_calls import failure_of, guarded
from r3l.rollout.env_interface import Environment, Offer, Playable, Retry
from r3l.rollout.failures import record_failed
from r3l.rollout.policy_interface import Policy
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import RunConfig
from r3l.run.settings.actor import AgentConfig

log = logging.getLogger(__name__)

KILLED = frozenset(
    code for number in (SIGHUP, SIGKILL, SIGTERM) for code in (-number, 128 + number)
)
"""Exit codes of a process killed from outside, for example by the kernel when memory is short. A
code is minus the signal's number, or 128 plus the number if a shell reports the exit."""

MakeEnv = Callable[[Task], Environment | AgentRunner]
MakePlayable = Callable[[Task], Playable]


@dataclass
class Gateway:
    """One gateway for all attempts of an actor. `sessions`: the sessions at `url`, by API key.
    `unset`: the environment variables that agents and graders do not get. `fresh`: the variables
    that name a new folder in each attempt. `refused`: the latest requests that were refused."""

    policy: Policy
    reader: ReplyReader
    metrics: ActorMetrics
    settings: AgentConfig
    sessions: dict[str, Session]
    url: str
    replays: Replays
    snapshots: Snapshots
    unset: Sequence[str] = ()
    fresh: Sequence[str] = ()
    refused: RefusedRequests = field(default_factory=RefusedRequests)


@asynccontextmanager
async def agents_served(
    make_env: MakeEnv, config: RunConfig, policy: Policy, metrics: ActorMetrics | None = None
) -> AsyncIterator[MakePlayable]:
    """Yields a function that makes the environment or the agent for a task. If the run has agents,
    also serves the policy over HTTP. Raises UserError if the chat template, a parser, the port or
    an API key is unusable."""
    if not config.env.has_agents:
        yield cast(MakePlayable, make_env)  # the run has no agent
        return
    settings, counts, sessions = config.actor.agent, metrics or ActorMetrics(), dict[str, Session]()
    reader = reader_of(policy.chat, settings)
    replays = Replays(settings.max_divergences, settings.ignore)
    app = WebApp(sessions, OtherModels(settings.models), counts.agent)
    async with app.served(settings.host, settings.port, settings.certificate) as url:
        snapshots = Snapshots(settings.max_divergences, counts.agent)
        servers = [server.key for server in settings.models.values()]
        unset = unset_names(os.environ, config.env.pass_environment, servers)
        gateway = Gateway(
            policy,
            reader,
            counts,
            settings,
            sessions,
            url,
            replays,
            snapshots,
            unset,
            fresh_names(config.env.pass_environment),
            app.refused,
        )

        def make(task: Task) -> Playable:
            env = make_env(task)
            return AgentEnvironment(env, gateway) if isinstance(env, AgentRunner) else env

        try:
            yield make
        finally:
            snapshots.close()


class AgentEnvironment:
    """Implements `r3l.rollout.env_interface.PlayedByAgent` for one attempt. Each process of the
    agent gets a new session. `kept`: seconds of sampling up to the process's last save of progress.
    `restored`: whether the saved state was put back for the process."""

    session: Session

    def __init__(self, runner: AgentRunner, gateway: Gateway) -> None:
        self.runner, self.spec, self.gateway = runner, runner.spec, gateway
        self.settings, self.counts = gateway.settings, gateway.metrics.agent
        self.kept, self.restored = 0.0, False
        self.close = runner.close

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
        world = self.gateway.snapshots.take(retry.base) if retry else None
        try:
            return await self._until_played(task, params, left, world)
        except ReplayDiverged as error:
            self.counts["diverged"] += 1
            if retry is None or retry.origin is None:  # it will not start from the beginning
                self.gateway.replays.diverged(error)
            raise
        except R3LError:
            raise
        except Exception as error:  # whatever an agent printed must not end the actor
            raise failure_of(error) from error
        finally:
            if world:
                await world.remove()

    async def _until_played(
        self, task: Task, params: ParamsOfStep, left: Trajectory | None, world: World | None
    ) -> Trajectory:
        """Plays one attempt with one process of the agent after the other."""
        processes = Processes()
        while True:
            state = world if processes.with_state else None
            try:
                played = await self._play(task, params, left, state)
            except EnvironmentFailed as error:
                following = processes.after(error, restored=self.restored)
                if following is Next.GIVE_UP:
                    raise
                log.warning("%s; %s", error, following.value)
                if following is Next.AGAIN:
                    self.counts["killed"] += 1
                    left = self._so_far(left)
                continue
            if processes.suspicion:  # without the state it went well
                self.gateway.snapshots.failed("restore_failed", processes.suspicion)
            return played

    async def _play(
        self, task: Task, params: ParamsOfStep, left: Trajectory | None, world: World | None
    ) -> Trajectory:
        """Plays one attempt with one process of the agent. A retry restores `world` at its
        pivot."""
        self.counts["attempts"] += 1
        self.kept, self.restored = 0.0, False
        session = self.session = self._opened(task, params, left)
        saved: World | None = None
        try:
            async with self._served(session) as relay:
                facts = await self._prepared(task)
                relay.urls, session.answer_mcp = facts.servers, relay.answer
                session.shown, session.graded = facts.task, facts.graded
                saved = self._attach_world(facts, world)
                try:
                    outcome = await self._outcome(facts)
                except EnvironmentFailed as error:
                    if session.tree.nodes or error is session.problem:
                        raise
                    raise self._without_call(error) from error
                made = self._record(outcome, self.settings.train)
                self._check_replayed(made)
                if saved:
                    await self.gateway.snapshots.keep(saved, made)
                    saved = None
        finally:
            if left:
                self._count_continued()
            if saved:
                await saved.remove()
        self.counts["conversations"] += len(made.conversations())
        self.gateway.metrics.tokens += token_counts(session.tree, made)
        self.counts["restarts"] += self.retry is not None and session.tape is None
        return made

    @asynccontextmanager
    async def _served(self, session: Session) -> AsyncIterator[McpRelay]:
        """Answers the calls of a process at the gateway. Yields the relay to its MCP servers."""
        relay = McpRelay(session, self._serve)
        sessions, metrics = self.gateway.sessions, self.gateway.metrics
        sessions[session.key] = session
        metrics.agents_running = len(sessions)
        try:
            yield relay
        finally:
            await relay.close()
            session.close()
            del sessions[session.key]
            metrics.agents_running = len(sessions)

    async def _prepared(self, task: Task) -> AgentFacts:
        given, unset = task.options.get("task", {}), list(self.gateway.unset)
        return await guarded(lambda: self.runner.prepare(given, unset))

    def _attach_world(self, facts: AgentFacts, world: World | None) -> World | None:
        """In a retry, lets `world` be restored at the pivot. In a base attempt that may be retried,
        returns a new world that is saved before each call."""
        session, tape = self.session, self.session.tape
        if world and isinstance(tape, RetryPlayer) and tape.pivot in world.saved:
            tape.stateful = facts.saved == "all" and repeats_tools(tape)
            session.at_call = partial(self._restore, tape, world)
        elif self.retried and facts.saved != "nothing":
            if saved := self.gateway.snapshots.new(self._run_state):
                session.at_call = partial(self._save, saved)
            return saved
        return None

    def _check_replayed(self, made: Trajectory) -> None:
        """Raises ReplayDiverged if a retry from the tape differs from its base attempt. Otherwise
        restarts the counts of failed replays and restores in a row."""
        if self.retry and self.session.tape:
            self.gateway.replays.check(made, self.retry)
        if self.restored:
            self.gateway.snapshots.in_a_row["restore_failed"] = 0

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
            shapes=self.settings.shapes,
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

    async def _restore(self, tape: RetryPlayer, world: World, node: Node) -> None:
        """If `node` is the pivot, restores the world. If the restore fails, ends the attempt."""
        if node is tape.pivot_node:
            try:
                await world.restore(tape.pivot, self._run_state)
                self.restored = True
                self.session.restored.set()
            except EnvironmentFailed as error:
                self.session.fail(error)

    async def _serve(self, name: str) -> str:
        return (await guarded(lambda: self.runner.serve(name))).folder

    async def _run_state(
        self, operation: Operation, folder: str, call: int
    ) -> tuple[ProcessState, bool]:
        runner, limit_s = self.runner, self.settings.state_s
        return await run_process(
            runner, KEEPER, lambda: runner.keep(operation, folder, call), limit_s
        )

    def _so_far(self, left: Trajectory | None) -> Trajectory | None:
        """Returns the attempt that the next process of a killed agent continues. If a base attempt
        has sampled since `left` was saved, this is all that it has played so far; otherwise it is
        `left`."""
        nodes = self.session.tree.nodes
        if not self.retry and any(node.sample and not node.taped for node in nodes):
            with suppress(EnvironmentFailed, RecordFailed):  # there is no call to train yet
                return self._progress()
        return left

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
        """Makes the attempt's record. Raises EnvironmentFailed if no call is trained. Raises
        RecordFailed if the record cannot be made."""
        session = self.session
        try:
            return trajectory(
                session.tree,
                outcome,
                slot=self.slot,
                temperature=session.params(0).temperature,
                train=train,
                retry=self.retry,
                at=session.pivot if self.retry else None,
                others=session.passed.calls,
            )
        except EpisodeError:
            raise
        except Exception as error:  # whatever the agent called
            raise record_failed(error) from error

    async def _outcome(self, facts: AgentFacts) -> Outcome:
        """Runs the agent to its end and grades the attempt."""
        runner, session, settings = self.runner, self.session, self.settings
        variables, fresh = self._variables(facts.servers), [*self.gateway.fresh]
        limit_s, of = min(
            (settings.timeout_s, "actor.agent.timeout_s"),
            (facts.limit_s or math.inf, "the task's own"),
        )
        state, in_time = await run_process(
            runner, MAIN, lambda: runner.start(variables, fresh), limit_s, session.ended
        )
        session.end()
        if session.problem is not None:
            raise session.problem
        result = session.result
        posted = result is not None
        if facts.graded and result is not None and not result.get("failed"):
            self._note_posted(result)
            result = None  # the grader's counts
        if not posted and in_time and state.exit != 0 and not session.full:
            code = state.exit
            error = AgentKilled if code in KILLED else EnvironmentFailed
            why = f"the agent ended with exit code {code}: {state.stderr}"
            lacks = {name: repr(name.rpartition(".")[2]) for name in facts.hidden}
            if missed := [name for name, key in lacks.items() if key in state.stderr]:
                why += f" (only the grader sees {missed[0]}: env.options.hidden)"
            why += _cut(session.tree.nodes)
            raise error(why, cause="agent_exit")
        if not in_time and settings.at_timeout == "fail":
            limit = f"{limit_s:g} s ({of})"
            raise failed("agent_timeout", f"the agent took longer than {limit} and was killed")
        if not session.tree.nodes:
            said = f" (its last line is {state.stdout!r:.100})" if state.stdout else ""
            raise failed("agent_no_calls", f"the agent ended without a call{said}")
        if isinstance(session.tape, RetryPlayer):
            session.tape.check_met()
        finish = "terminated" if in_time else "truncated"
        if result is None and facts.graded:
            limit_s = max(settings.timeout_s, facts.grader_s or 0)
            result = await grade(runner, session.tree.tape(), limit_s)
        elif result is None:
            result = last_line(state, "no_reward", "the agent")
        return outcome_of(
            result, self.spec.success_threshold, "context_overflow" if session.full else finish
        )

    def _without_call(self, error: EnvironmentFailed) -> EnvironmentFailed:
        """Returns the error of an attempt without a call, with the addresses that its client must
        use and the refused requests that came."""
        gateway, session = self.gateway, self.session
        came = "; ".join(gateway.refused.of(session.key, session.began)) or "nothing"
        return type(error)(
            f"{error}; no call was answered: the agent's client must use OPENAI_BASE_URL "
            f"({gateway.url}/v1) with OPENAI_API_KEY, or ANTHROPIC_BASE_URL ({gateway.url}); what "
            f"came there: {came}",
            **error.facts,
        )

    def _note_posted(self, result: dict[str, Any]) -> None:
        """Says, once a minute, that a posted reward does not count."""
        notice_again(
            "posted",
            f"an agent posted {result!r:.100}; it ended the attempt, whose reward is that of its "
            "grader (env.options.reward)",
        )

    def _variables(self, servers: Iterable[str] = ()) -> dict[str, str]:
        key, url = self.session.key, self.gateway.url
        return {
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",  # of older clients
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
            "R3L_URL": url,
            **direct_hosts(os.environ, urlsplit(url).hostname or ""),
            "OPENAI_AGENTS_DISABLE_TRACING": "1",  # it would send them to OpenAI
        } | {
            f"R3L_MCP_{name.upper().replace('-', '_')}": f"{url}/mcp/{name}/{key}"
            for name in servers
        }


def _continuation(left: Trajectory | None, params: ParamsOfStep) -> ContinuingPlayer | None:
    """Makes a player that repeats the calls of `left`. Returns None if the calls cannot be used."""
    if left is None or left.temperature != params(0).temperature:
        return None
    try:
        return continuing_player(left)
    except ReplayDiverged as error:
        log.warning("a partial attempt is dropped, and its slot played afresh: %s", error)
        return None


def _cut(nodes: Sequence[Node]) -> str:
    """Returns what an agent's error may come from, if its last reply was cut."""
    sampled = [(node.finish, node.sample) for node in nodes if node.sample is not None]
    if not sampled or sampled[-1][0] != "length":
        return ""
    return (
        f" (its last reply was cut after {len(sampled[-1][1].token_ids)} tokens, which some "
        "clients raise as an error: have the agent catch it, or raise its own limit or "
        "actor.max_response_tokens)"
    )
