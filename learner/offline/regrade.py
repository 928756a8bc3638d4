"""Writes a copy of a finished store with the rewards of a corrected environment or grader.

every attempt ─► its actions, replayed and checked ─► judgement ─► group ─► new store, which names
        │                │                                ▲                 the old one
        └─► of an agent: its calls, given to the grader ──┘
                         └─► cannot be judged: its slot fails with a cause, counted and printed

Tokens, log-probabilities, versions, reflections, draws and ledger stay as they are.
"""

import asyncio
import json
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import click
from msgspec.structs import replace

from buffer.storage.store import Store
from buffer.storage.store_path import check_store, store_path
from buffer.storage.stored_rows import Regrade
from buffer.storage.transaction import Txn
from buffer.tools import store_reads
from buffer.tools.rewrite import put_group, rewrite_store
from envs.agents.agent_checks import check_needs_no_folder
from envs.agents.agent_runner import AgentRunner
from envs.agents.agent_steps import failed, grade, outcome_of
from envs.agents.agent_variables import unset_names
from envs.isolation.pool import environments_of_all
from r3l.errors import EnvironmentFailed, EpisodeError, RecordError, UserError
from r3l.records import SUCCESS, Group, SlotResult, Task, Trajectory
from r3l.rollout.attempt import judged, regraded
from r3l.rollout.env_calls import guarded, parts_in
from r3l.rollout.env_interface import Environment
from r3l.rollout.failures import record_failed
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.process.command_line import echo
from r3l.run.settings.actor import AgentConfig
from r3l.run.settings.environment import by_agent
from r3l.text import shorten
from r3l.views.tape import read_tape

AT_ONCE = 16
"""Attempts that are judged at the same time."""
MOST_KINDS = 20
"""Kinds of failures that are printed."""
_ERROR = re.compile(r"\b[A-Za-z_]*(?:Error|Exception)\b")

MakeEnv = Callable[[Task], Environment | AgentRunner]


@click.command("regrade")
@click.argument("store", metavar="STORE", type=store_path)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="new store")
@click.option("--env", help="environment by name or path.py:Class; else the configuration's")
@click.option(
    "--config", "path", type=Path, help="config.yaml of the run; else the one next to STORE"
)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def regrade_command(
    store: Path, out: Path, env: str | None, path: Path | None, overrides: tuple[str, ...]
) -> None:
    """Judge the attempts of STORE again, and write them to a new store.

    Replays the actions of every attempt, or gives the calls of an agent to its grader. KEY=VALUE
    are settings, such as env.options.reward=fixed.py:grade. An attempt that cannot be judged is
    left out as a failed slot; then the exit code is 1. If none can be judged, or settings are
    wrong, the exit code is 2 and nothing is written.
    """
    check_store(store)
    beside = store.parent / "config.yaml"
    named = [f"env={env}"] if env else []
    config = configuration.load(
        path or (beside if beside.is_file() else None), [*named, *overrides]
    )
    tally = regrade(store, out, config)
    for line in tally.lines():
        echo(line)
    if tally.left_out:
        sys.exit(1)


def regrade(folder: Path, out: Path, config: RunConfig) -> "Tally":
    """Writes a copy of the store in `folder` to `out`, with rewards by `config.env`. Returns what
    changed. Raises UserError if nothing can be judged; then nothing is written."""
    check_can_judge(config)
    with Store(folder, read_only=True) as source:
        regrader = Regrader(config, Tally(str(source.folder.resolve())))
        asyncio.run(regrader.run(source, out))
    return regrader.tally


def check_can_judge(config: RunConfig) -> None:
    """Raises UserError unless stored attempts can be judged without their agents."""
    for env in config.env.each():
        if by_agent(env.name) and not env.options.get("reward"):
            raise UserError(
                f"env {env.name}: cannot be regraded, because its agent or taskset gives the "
                "reward itself; give an agent a grader, env.options.reward=file.py:function"
            )
        if by_agent(env.name):
            check_needs_no_folder(str(env.options["reward"]))


@dataclass
class Tally:
    """What a regrade did. `before`, `after`: rewards of the attempts that were judged. `left_out`:
    number of attempts that could not be judged, by kind; `first`: the first one of each kind, as
    text. `causes`: the number of these attempts by cause."""

    store: str
    groups: int = 0
    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    causes: Counter[str] = field(default_factory=Counter)

    @property
    def changed(self) -> int:
        """The number of attempts whose reward changed."""
        return sum(a != b for a, b in zip(self.before, self.after, strict=True))

    def failed(self, place: str, error: EpisodeError) -> None:
        """Counts an attempt that could not be judged."""
        kind = kind_of(error)
        self.left_out[kind] += 1
        self.causes[error.cause] += 1
        self.first.setdefault(kind, shorten(f"{place}: {error}", 300))

    def failures(self) -> list[str]:
        """Describes each kind of failure in one line."""
        lines = [
            f"left out {count} attempt{'s' * (count > 1)}: {kind}; the first is {self.first[kind]}"
            for kind, count in self.left_out.most_common(MOST_KINDS)
        ]
        if (more := len(self.left_out) - MOST_KINDS) > 0:
            lines.append(f"left out attempts for {more} more kinds of reasons")
        return lines

    def lines(self) -> list[str]:
        """Describes the regrade in lines: one for each kind of failure, then the totals."""
        solved = [sum(reward >= SUCCESS for reward in each) for each in (self.before, self.after)]
        mean = [fmean(each) if each else math.nan for each in (self.before, self.after)]
        return [
            *self.failures(),
            f"judged {len(self.after)} attempts of {self.groups} groups: {self.changed} rewards "
            f"changed; mean {mean[0]:.4g} -> {mean[1]:.4g}; successes {solved[0]} -> {solved[1]}",
        ]


def kind_of(error: EpisodeError) -> str:
    """Names a kind of failure: its cause, and the class of the error that a grader raised."""
    raised = _ERROR.search(str(error))
    return (
        f"{error.cause} ({raised[0]})" if raised and raised[0] not in error.cause else error.cause
    )


@dataclass
class Regrader:
    """Judges the attempts of one store."""

    config: RunConfig
    tally: Tally

    async def run(self, source: Store, out: Path) -> None:
        """Writes the new store. Raises UserError if no attempt can be judged."""
        with rewrite_store(source, out) as copy:
            async with environments_of_all(self.config.env, wanted=AT_ONCE) as make_env:
                names = [row["group"] for row in store_reads.rows(source) if row["done"]]
                for start in range(0, len(names), AT_ONCE):
                    some = names[start : start + AT_ONCE]
                    groups = [store_reads.group(source, name) for name in some]
                    with copy.write() as txn:
                        for group in await self.judge(groups, make_env):
                            _put(txn, group)
            if not self.tally.after:
                why = "; ".join(self.tally.failures()) or "it holds none"
                raise UserError(
                    f"store {source.folder}: no attempt could be judged: {why}; nothing was written"
                )
            with copy.write() as txn:
                txn.put_regrades((*txn.regrades(), self._origin()))

    def _origin(self) -> Regrade:
        env, tally = self.config.env, self.tally
        return Regrade(
            store=tally.store,
            env=env.title,
            options=json.dumps(env.options, sort_keys=True, default=str) if env.options else "",
            when=time.time(),
            attempts=len(tally.after),
            changed=tally.changed,
            left_out=dict(tally.causes),
        )

    async def judge(self, groups: Sequence[Group], make_env: MakeEnv) -> list[Group]:
        """Judges all attempts of some groups. Returns the groups with the new judgements."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def judge_one(task: Task, result: SlotResult) -> SlotResult | EpisodeError:
            async with limit:
                try:
                    return await self._result(task, result, make_env)
                except EpisodeError as error:
                    return error
                except RecordError as error:
                    return record_failed(error)

        judging = [judge_one(group.task, each) for group in groups for each in group.results]
        judgements = iter(await asyncio.gather(*judging))
        self.tally.groups += len(groups)
        return [
            replace(
                group,
                results=tuple(self._counted(group, old, next(judgements)) for old in group.results),
            )
            for group in groups
        ]

    async def _result(self, task: Task, result: SlotResult, make_env: MakeEnv) -> SlotResult:
        """Judges one attempt. Raises EpisodeError."""
        attempt = result.trajectory
        if attempt is None:
            return result
        env: Environment | AgentRunner = await guarded(lambda: make_env(task))
        try:
            if isinstance(env, AgentRunner):
                settings, passed = self.config.actor.agent, self.config.env.pass_environment
                new = await regraded_agent(env, task, attempt, settings, passed)
            else:
                new = await regraded(env, task, attempt)
        finally:
            with suppress(EpisodeError):
                await guarded(env.close)
        return replace(result, trajectory=new)

    def _counted(self, group: Group, old: SlotResult, new: SlotResult | EpisodeError) -> SlotResult:
        """Counts a judgement. Returns the slot's result, or a failure if there is no judgement."""
        if isinstance(new, EpisodeError):
            step = f", step {new.facts['step']}" if "step" in new.facts else ""
            self.tally.failed(f"group {group.group_id}, slot {old.slot}{step}", new)
            return SlotResult(old.slot, "failed", cause=new.cause, of=old.of)
        if old.trajectory is not None and new.trajectory is not None:
            self.tally.before.append(old.trajectory.reward)
            self.tally.after.append(new.trajectory.reward)
        return new


def _put(txn: Txn, group: Group) -> None:
    try:
        put_group(txn, group)
    except RecordError as error:
        raise UserError(f"group {group.group_id}: {error}; nothing was written") from None


async def regraded_agent(
    runner: AgentRunner,
    task: Task,
    attempt: Trajectory,
    settings: AgentConfig,
    passed: Sequence[str] = (),
) -> Trajectory:
    """Gives the recorded calls of an attempt to the grader. Returns the attempt with the new
    reward, reward parts, feedback and scores. `passed`: env.pass_environment. Raises
    EnvironmentFailed if the messages of the calls were not stored, or if the grader fails."""
    try:
        calls = [call for call in read_tape(attempt.extra.tape) if not call.model]
    except RecordError as error:
        raise failed("no_calls", str(error)) from None
    if not any(call.messages for call in calls):
        raise failed("no_calls", "no call is stored, or the messages were too long to be stored")
    servers = [server.key for server in settings.models.values()]
    unset = unset_names(os.environ, passed, servers)
    given = task.options.get("task", {})
    await guarded(lambda: runner.prepare(given, unset, stored=True))
    result = await grade(runner, calls, settings.timeout_s)
    try:
        outcome = outcome_of(result, runner.spec.success_threshold, attempt.finish)
    except EnvironmentFailed as error:
        raise failed("grader_failed", str(error)) from error
    return judged(
        attempt,
        outcome.reward,
        outcome.feedback,
        parts=outcome.parts,
        scores=parts_in(result, "scores") if isinstance(result, dict) else {},
        last=outcome.feedback,
    )
