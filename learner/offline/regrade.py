"""Writes a finished store again, with rewards from a corrected environment, verifier or grader.

every attempt ─► its actions, replayed and checked ─► reward ─► group ─► new store, linked to
        │                │ another observation              ▲              the old one
        │                └─► reported; the store is refused, or the attempt left out
        └─► of an agent: its calls, given to the grader ────┘
"""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
from msgspec.structs import replace

from buffer.storage.store import Store
from buffer.storage.store_path import store_path
from buffer.tools import store_reads
from buffer.tools.rewrite import put_group, rewritten
from envs.agents.agent_steps import failed, grade, outcome_of
from envs.isolation.pool import environments_of_all
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import EnvironmentFailed, EpisodeError, ReplayDiverged, UserError
from r3l.files.whole_file import write_json
from r3l.process.command_line import echo
from r3l.records import Group, SlotResult, Task, Trajectory
from r3l.rollout.attempt import regraded
from r3l.rollout.env_calls import guarded
from r3l.rollout.env_interface import Environment
from r3l.rollout.group import verified
from r3l.settings.actor import AgentConfig
from r3l.settings.environment import by_agent
from r3l.views.tape import read_tape

AT_ONCE = 16
"""Attempts that are replayed at the same time."""


@dataclass
class Tally:
    """The counts of a regrade: attempts in all, changed in reward and left out; full
    successes before and after; auxiliary samples that the new rewards do not justify."""

    groups: int = 0
    attempts: int = 0
    changed: int = 0
    diverged: int = 0
    successes_before: int = 0
    successes: int = 0
    aux_dropped: int = 0


@click.command("regrade")
@click.argument("store", metavar="STORE", type=store_path)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="new store")
@click.option("--env", help="environment by name or path.py:Class; else that of the configuration")
@click.option("--config", "path", type=Path, help="config.yaml of the run that filled the store")
@click.option(
    "--drop-diverged",
    is_flag=True,
    help="leave out attempts that the environment no longer replays, or that an agent's grader "
    "does not grade, as failed; else they are errors",
)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def regrade_command(
    store: Path,
    out: Path,
    env: str | None,
    path: Path | None,
    drop_diverged: bool,
    overrides: tuple[str, ...],
) -> None:
    """Write a store with new rewards: replay the actions of every stored attempt, or grade an
    agent's calls.

    KEY=VALUE are settings, such as env.options.strict=true.
    """
    named = [f"env={env}"] if env else []
    config = configuration.load(path, [*named, *overrides])
    echo(json.dumps(asdict(regrade(store, out, config, drop_diverged=drop_diverged))))


def regrade(folder: Path, out: Path, config: RunConfig, *, drop_diverged: bool = False) -> Tally:
    """Writes a store to `out` with the rewards of `config.env`, and a line to the terminal for
    every attempt left out. If it raises UserError, nothing has been written."""
    for env in config.env.each():
        if by_agent(env.name) and not env.options.get("reward"):
            raise UserError(
                f"env {env.name}: cannot be regraded, because its agent or taskset gives the "
                "reward itself; an agent can have a grader, the option reward=file.py:function"
            )
    regrader = Regrader(config, drop_diverged)
    with Store(folder, read_only=True) as source:
        asyncio.run(regrader.run(source, out))
    return regrader.tally


@dataclass
class Regrader:
    """Regrades one store."""

    config: RunConfig
    drop_diverged: bool
    tally: Tally = field(default_factory=Tally)

    async def run(self, source: Store, out: Path) -> None:
        env = self.config.env
        with rewritten(source, out) as copy:
            async with environments_of_all(env, wanted=AT_ONCE) as make_env:
                for name in [row["group"] for row in store_reads.rows(source) if row["resolved"]]:
                    new = await self._group(store_reads.group(source, name), make_env)
                    with copy.write() as txn:
                        put_group(txn, new)
            if not self.tally.attempts:
                raise UserError(f"store {source.folder}: holds no attempt; give the store of a run")
            origin = {"store": str(source.folder.resolve()), "env": env.title, "when": time.time()}
            origin |= {"options": dict(env.options), **asdict(self.tally)}
            write_json(copy.folder / "regraded.json", origin)

    async def _group(self, group: Group, make_env: Callable[[Task], Environment]) -> Group:
        limit = asyncio.Semaphore(AT_ONCE)

        async def regrade(result: SlotResult) -> SlotResult:
            async with limit:
                return await self._result(group, result, make_env)

        results = await asyncio.gather(*map(regrade, group.results))
        self.tally.groups += 1
        bases = {result.slot: result.trajectory for result in results if result.role == "base"}
        return replace(group, results=tuple(self._justified(each, bases) for each in results))

    async def _result(
        self, group: Group, result: SlotResult, make_env: Callable[[Task], Environment]
    ) -> SlotResult:
        attempt = result.trajectory
        if attempt is None:
            return result
        env = await guarded(lambda: make_env(group.task))
        try:
            if by_agent(env.spec.name):
                new = await regraded_agent(env, group.task, attempt, self.config.actor.agent)
            else:
                new = await regraded(env, group.task, attempt)
        except EpisodeError as error:
            return self._left_out(group, result, error)
        finally:
            with suppress(EpisodeError):
                await guarded(env.close)
        self.tally.attempts += 1
        self.tally.changed += attempt.reward != new.reward
        self.tally.successes_before += attempt.reward >= 1.0
        self.tally.successes += new.reward >= 1.0
        return replace(result, trajectory=new)

    def _left_out(self, group: Group, result: SlotResult, error: EpisodeError) -> SlotResult:
        """Turns an attempt that could not be replayed into a failed slot, if `drop_diverged` is
        set. Raises UserError otherwise."""
        name = f"group {group.group_id}, {result.role} {result.slot}"
        if "step" in error.facts:
            name += f", step {error.facts['step']}"
        alone = isinstance(error, ReplayDiverged) or error.cause == "grader_failed"
        if not (self.drop_diverged and alone):
            hint = "; --drop-diverged leaves such attempts out" if alone else ""
            raise UserError(f"{name}: {error}; nothing was written{hint}") from error
        echo(f"left out: {name}: {error}", err=True)
        self.tally.attempts += 1
        self.tally.diverged += 1
        return replace(result, status="failed", cause=error.cause, trajectory=None, aux=())

    def _justified(self, result: SlotResult, bases: dict[int, Trajectory | None]) -> SlotResult:
        """Drops auxiliary samples that the new rewards do not justify."""
        base, attempt = bases.get(result.slot), result.trajectory
        if not result.aux or base is None:
            return result
        if attempt is None:
            justified = base.reward >= 1.0
        else:
            strict = self.config.algorithm.build().exploration.verified_requires_success
            justified = verified(base, attempt, requires_success=strict)
        if justified:
            return result
        self.tally.aux_dropped += len(result.aux)
        return replace(result, aux=())


async def regraded_agent(
    env: Environment, task: Task, attempt: Trajectory, settings: AgentConfig
) -> Trajectory:
    """Gives the calls of an attempt to the grader. Returns the attempt with the new reward, reward
    parts and feedback. Raises EnvironmentFailed if there are no calls with messages, or if the
    grader fails."""
    calls = [call for call in read_tape(attempt.extra.tape) if not call.model]
    if not any(call.messages for call in calls):
        raise failed(
            "grader_failed",
            "agent: the attempt has no tape, or its messages were too long to be stored",
        )
    secret = [server.key for server in settings.models.values()]
    options = task.options | {"secret": secret, "stored": True}
    await guarded(lambda: env.reset(seed=task.seed, options=options))
    result = await grade(env, calls, settings.timeout_s)
    try:
        outcome = outcome_of(result, env.spec.success_threshold, attempt.finish)
    except EnvironmentFailed as error:
        raise failed("grader_failed", str(error)) from error
    return replace(
        attempt,
        reward=outcome.reward,
        observations=(*attempt.observations[:-1], outcome.feedback),
        feedback=outcome.feedback,
        extra=replace(attempt.extra, reward_parts=outcome.parts),
    )
