"""`r3l-launch doctor`: reports what is wrong with a run, what limits its pace, and what to do."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import ceil

import click

from launch.inspection import snapshot
from launch.inspection.snapshot import BALANCED, Snapshot
from launch.inspection.status import ago, waits
from r3l.run.files.run_folder import RunFolder, run_folder
from r3l.run.process.command_line import echo

GIB = 1 << 30
LITTLE_DISK, LITTLE_MAP = 2 * GIB, GIB // 4
LOST_SHARE = 0.1  # share of the groups or the results
WAITING = 0.1  # share of the attempts that wait for their environment
OVERDUE = 5.0  # times the median of a step
SEEN_S = 10.0  # an actor that is silent for less is not reported


@dataclass(frozen=True)
class Finding:
    """A problem or a hint, and its remedy."""

    problem: bool
    what: str
    remedy: str = ""


_problem, _hint = partial(Finding, True), partial(Finding, False)


@click.command()
@click.argument("name", metavar="RUN")
def doctor(name: str) -> None:
    """Report what is wrong with a run, what limits the pace, and what to do. The exit code is 1 if
    anything is wrong."""
    now = snapshot.take(RunFolder(run_folder(name)).started())
    results = findings(now)
    for finding in results:
        echo(f"{'problem' if finding.problem else 'hint':<9}{finding.what}")
        if finding.remedy:
            echo(f"{'':<9}→ {finding.remedy}")
    for line in waits(now):
        echo(f"{'waits':<9}{line}")
    wrong = any(finding.problem for finding in results)
    if not wrong:
        echo("nothing is wrong with the run")
    sys.exit(wrong)


def findings(now: Snapshot) -> list[Finding]:
    """Returns all findings, problems first."""
    results = [
        *_processes(now), *_silence(now), *_store(now), *_losses(now), *_pace(now),
        *_learning(now), *_bound(now),
    ]  # fmt: skip
    return sorted(results, key=lambda finding: not finding.problem)


def _processes(now: Snapshot) -> Iterator[Finding]:
    again = f"r3l-launch --resume --run {now.run}"
    if not now.alive:
        if now.progress.step < now.progress.steps:
            step = f"the run ended at step {now.progress.step} of {now.progress.steps}"
            yield _problem(f"no process is running; {step}", f"continue it with {again}")
        return
    if now.launcher is None:
        pids = " ".join(str(process.pid) for process in now.processes)
        yield _problem(
            "the launcher has ended and left processes behind", f"kill {pids}, then {again}"
        )
    for process in now.processes:
        who = f"{process.name} (process {process.pid})"
        if process.state in ("stopped", "tracing-stop"):
            yield _problem(f"{who} is stopped", f"kill -CONT {process.pid}")
        elif process.state in ("zombie", "dead"):
            yield _problem(f"{who} is dead, but its parent has not collected it")
        elif process.state == "disk-sleep":
            yield _hint(f"{who} waits in the kernel for a disk")
    for name in ("buffer", "learner"):
        if now.process(name) is None and now.launcher is not None:
            yield _problem(
                f"{name} is not running; the launcher restarts it, or ends the run",
                f"see {now.run}/logs/{name}.log",
            )


def _silence(now: Snapshot) -> Iterator[Finding]:
    logs = f"see {now.run}/logs"
    if now.process("buffer") is not None and now.buffer.reply_s is None:
        yield _problem(
            f"the buffer does not answer: {now.buffer.error}",
            f"{logs}/buffer.log; its disk may be slow",
        )
    for actor in now.actors:
        name = actor.process or actor.name
        if actor.seen_ago_s > max(now.lease_s / 2, SEEN_S) and now.process(name) is not None:
            yield _problem(
                f"{name} has sent nothing for {ago(actor.seen_ago_s)}",
                f"other actors continue its groups, at the latest after {now.lease_s:g} s "
                f"(buffer.lease_s); "
                f"{logs}/{name}.log",
            )
    beat = now.heartbeat_ago_s
    if now.process("learner") is not None and beat is not None and beat > now.hang_s / 2:
        yield _problem(
            f"the learner has sent no heartbeat for {ago(beat)}: {now.learner_doing}",
            f"it is restarted after {now.hang_s:g} s (learner.hang_s); "
            "SIGUSR2 makes it dump its stacks",
        )
    if now.damaged_lines:
        yield _hint(
            f"damaged lines in progress.jsonl, all left out: {now.damaged_lines}",
            "check the run's disk",
        )
    if now.hangs:
        yield _hint(f"hangs of the learner: {now.hangs}", f"see {now.run}/hangs.jsonl")


def _store(now: Snapshot) -> Iterator[Finding]:
    free, map_free = now.buffer.stats.free_bytes, now.buffer.map_free_bytes
    if map_free is not None and free < LITTLE_DISK:
        yield _problem(
            f"the store's disk has {free / GIB:.2f} GiB left",
            "free some, or resume with buffer.retention",
        )
    if map_free is not None and map_free < LITTLE_MAP:
        yield _problem(
            f"the store can grow by only {map_free / GIB:.2f} GiB",
            "raise buffer.map_gib, or set buffer.retention",
        )
    if count := now.buffer.stats.fingerprint_conflicts:
        yield _problem(
            f"results of one version that were sampled with different weights: {count}",
            "actors of another run may use this buffer",
        )


def _losses(now: Snapshot) -> Iterator[Finding]:
    stats, made = now.buffer.stats, sum(now.buffer.stats.train.values())
    for cause, count in stats.drops.items():
        if cause not in stats.replaced and count > LOST_SHARE * made:
            remedy = "fewer actors, or a larger buffer.max_staleness" if cause == "stale" else ""
            yield _problem(f"{count} groups expired: {cause}; {made} are in the store", remedy)
    for method, count in stats.algorithm_failed.items():
        yield _problem(
            f"the algorithm's {method} failed {count} times in the buffer, which used a default",
            f"see {now.run}/logs/buffer.log",
        )
    for name, count in stats.slot_drops.items():
        role, _, cause = name.partition("/")
        ours = cause.startswith("record_") or cause == "bad_record"
        if cause not in stats.drops and (ours or count > LOST_SHARE * stats.puts):
            remedy = " for the traceback, and report it: no attempt may cause this" if ours else ""
            yield _problem(
                f"{count} {role} attempts failed: {cause}; {stats.puts} results were put",
                f"see {now.run}/logs{remedy}",
            )
    if stats.leases_expired:
        counts = sum((Counter(numbers) for numbers in stats.actors.values()), Counter[str]())
        yield _hint(
            f"expired leases: {stats.leases_expired}; their actors died, stopped or were cut off; "
            f"other actors continued {counts['partial_continued']:.0f} of their attempts and "
            f"dropped {counts['partial_dropped'] + sum(stats.partial_dropped.values()):.0f}"
        )


def _pace(now: Snapshot) -> Iterator[Finding]:
    progress, version = now.progress, now.buffer.stats.learner_version
    if not now.alive:
        return
    if progress.next_s is not None and progress.step_s is not None:
        late = -progress.next_s
        if late > OVERDUE * progress.step_s:
            yield _problem(
                f"the next step is overdue by {ago(late)}; a step takes {ago(progress.step_s)}"
            )
    running, waiting = sum(actor.requests for actor in now.actors), progress.session_waits
    if waiting > WAITING * (running + waiting):
        yield _hint(
            f"{waiting:.0f} attempts wait for the environment, so the engines lack requests",
            "raise env.workers (processes per actor and environment), or `sessions` in its EnvSpec",
        )
    for actor in now.actors:
        if version - actor.version > max(now.max_staleness, 1):
            name = actor.process or actor.name
            yield _problem(
                f"{name} has weights v{actor.version}, the learner has v{version}",
                f"see {now.run}/logs/{name}.log for why it does not load newer ones",
            )


def _learning(now: Snapshot) -> Iterator[Finding]:
    """Reports why the last steps taught the policy nothing. Also reports the guidance gain."""
    for reason in now.learns_nothing:
        yield _problem(f"the run learns nothing: {reason.what}", reason.remedy)
    if now.guidance is not None:
        yield _hint(*now.guidance)


def _bound(now: Snapshot) -> Iterator[Finding]:
    """Reports whether the learner or the actors limit the pace, and by how much."""
    learner, actors = now.progress.learner_idle, now.progress.actor_idle
    if learner is None or actors is None:
        return
    if max(learner, actors) < BALANCED:
        yield _hint(
            f"balanced: the learner waits {learner:.0%} of the time, the actors {actors:.0%}"
        )
    elif learner >= actors:
        most = f"at most {1 / (1 - learner):.3g} times as fast" if learner < 1 else "much faster"
        yield _hint(
            f"the learner waits {learner:.0%} of the time for groups: actor-bound",
            f"more actors make steps {most}",
        )
    else:
        count, enough = len(now.actors), ceil(len(now.actors) * (1 - actors))
        fewer = f"; {enough} of {count} actors would keep this pace" if enough < count else ""
        yield _hint(
            f"the actors wait {actors:.0%} of the time for leases: learner-bound",
            f"a faster learner helps{fewer}",
        )
