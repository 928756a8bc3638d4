"""`r3l-launch doctor`: reports what is wrong with a run, what limits its pace, and what to do."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path

import click

from launch.inspection import snapshot
from launch.inspection.many_actors import SAMPLE, such_as
from launch.inspection.retry_reliance import reliance_of_retries
from launch.inspection.reward_examples import EXAMPLES, examples, newest
from launch.inspection.snapshot import BALANCED, ActorState, Snapshot
from launch.inspection.status import waits
from learner.offline.regraded_sample import regrade_sample
from r3l.errors import UserError
from r3l.run.bill import shown
from r3l.run.files.run_folder import RunFolder, run_folder, run_name
from r3l.run.process.command_line import echo
from r3l.text import GIB, time_span

LITTLE_DISK, LITTLE_MAP = 2 * GIB, GIB // 4
LOST_SHARE = 0.1  # share of the groups or the results
WAITING = 0.1  # share of the attempts that wait for their environment
OVERDUE = 5.0  # times the median of a step
SEEN_S = 10.0  # an actor that is silent for less is not reported
FULL_S = 300.0  # clients that wait for a place of the buffer try again every second


@dataclass(frozen=True)
class Finding:
    """A problem or a hint, and its remedy."""

    problem: bool
    what: str
    remedy: str = ""


_problem, _hint = partial(Finding, True), partial(Finding, False)


@click.command()
@click.argument("name", metavar="RUN")
@click.option(
    "--regrade", metavar="N", type=click.IntRange(min=1), help="judge the newest N attempts again"
)
def doctor(name: str, regrade: int | None) -> None:
    """Report what is wrong with a run, what limits the pace, and what to do. The exit code is 1 if
    anything is wrong. With --regrade, also report whether the grader gives the same rewards again:
    this starts the run's environments here, and calls the judge if there is one."""
    folder = RunFolder(run_folder(name)).require_settings()
    now = snapshot.take(folder)
    results = [*findings(now), *(judged_again(folder, regrade) if regrade else [])]
    for finding in results:
        echo(f"{'problem' if finding.problem else 'hint':<9}{finding.what}")
        if finding.remedy:
            echo(f"{'':<9}→ {finding.remedy}")
    for line in waits(now):
        echo(f"{'waits':<9}{line}")
    wrong = any(finding.problem for finding in results)
    if not wrong and not now.learns_nothing:
        echo("nothing is wrong with the run")
    sys.exit(wrong)


def findings(now: Snapshot) -> list[Finding]:
    """Returns all findings, problems first. Leaves out the pace if there is a reason why the run
    learns little."""
    results = [
        *_processes(now), *_silence(now), *_store(now), *_losses(now), *_overdue(now),
        *_learning(now), *_agents(now), *_reward(now),
    ]  # fmt: skip
    if not (now.learns_nothing or now.agent_alarms or now.reward):  # it would learn as little
        results += [*_pace(now), *_bound(now)]
    return sorted(results, key=lambda finding: not finding.problem)


def _processes(now: Snapshot) -> Iterator[Finding]:
    again = f"r3l-launch --resume --run {run_name(Path(now.run))}"
    if not now.alive:
        if now.progress.step < now.progress.steps:
            step = f"the run ended at step {now.progress.step} of {now.progress.steps}"
            yield _ended(now, step, again)
        return
    if now.launcher is None:
        pids = " ".join(str(process.pid) for process in now.processes)
        yield _problem(
            "the launcher has ended and left processes behind", f"kill {pids}, then {again}"
        )
    yield from _halted(now)
    for name in ("buffer", "learner"):
        if now.process(name) is None and now.launcher is not None:
            yield _problem(
                f"{name} is not running; the launcher restarts it, or ends the run",
                f"see {now.run}/logs/{name}.log",
            )


def _halted(now: Snapshot) -> Iterator[Finding]:
    """Reports processes that the kernel does not run. Many in one state are one finding."""

    def found(*states: str) -> Iterator[tuple[str, str]]:
        some = [process for process in now.processes if process.state in states]
        if len(some) > SAMPLE:
            names = such_as([process.name for process in some])
            pids = " ".join(str(process.pid) for process in some)
            yield f"each of {len(some)} processes ({names})", pids
        else:
            yield from ((f"{one.name} (process {one.pid})", str(one.pid)) for one in some)

    for who, pids in found("stopped", "tracing-stop"):
        yield _problem(f"{who} is stopped", f"kill -CONT {pids}")
    for who, _ in found("zombie", "dead"):
        yield _problem(f"{who} is dead, but its parent has not collected it")
    for who, _ in found("disk-sleep"):
        yield _hint(f"{who} waits in the kernel for a disk")


def _ended(now: Snapshot, step: str, again: str) -> Finding:
    """A run without processes before its last step: its budget stopped it, or something else."""
    used = {name: pair for name, pair in now.budget.items() if pair[0] >= pair[1]}
    if not used:
        return _problem(f"no process is running; {step}", f"continue it with {again}")
    limits = ", ".join(f"{n}={shown(limit)} is used up" for n, (_, limit) in used.items())
    free = " ".join(f"{name}=null" for name in used)
    return _hint(
        f"no process is running; {step}: {limits}",
        f"give more, or no limit: {again} {free}",
    )


def _silence(now: Snapshot) -> Iterator[Finding]:
    logs = f"see {now.run}/logs"
    if now.process("buffer") is not None and now.buffer.reply_s is None:
        why, _, remedy = now.buffer.error.partition("; ")
        yield _problem(
            f"the buffer does not answer: {why}",
            remedy or f"{logs}/buffer.log; its disk may be slow",
        )
    full_ago_s = now.buffer.stats.full_ago_s
    if full_ago_s is not None and full_ago_s < FULL_S:
        times = now.buffer.stats.refused.get("too_many_connections", 0)
        yield _problem(
            f"the buffer had no place for a client {time_span(full_ago_s)} ago, and {times} times "
            "since it started",
            "end clients that are not needed, or raise the limit of open files of its machine "
            "(ulimit -n)",
        )
    silent = [
        actor for actor in now.actors
        if actor.seen_ago_s > max(now.lease_s / 2, SEEN_S)
        and now.process(_name(actor)) is not None
    ]  # fmt: skip
    silent.sort(key=lambda actor: actor.seen_ago_s)
    for who, least, name in _together(silent):
        span = time_span(least.seen_ago_s) + (" or more" if who != name else "")
        yield _problem(
            f"{who} has sent nothing for {span}",
            f"other actors continue its groups, at the latest after {now.lease_s:g} s "
            f"(buffer.lease_s); "
            f"{logs}/{name}.log",
        )
    beat = now.heartbeat_ago_s
    if now.process("learner") is not None and beat is not None and beat > now.hang_s / 2:
        yield _problem(
            f"the learner has sent no heartbeat for {time_span(beat)}: {now.learner_doing}",
            f"it is restarted after {now.hang_s:g} s (learner.hang_s); "
            "SIGUSR2 makes it dump its stacks",
        )
    if now.damaged_bill:
        why, _, remedy = now.damaged_bill.partition("; ")
        yield _problem(f"the bill cannot be read: {why}", remedy)
    if now.damaged_lines:
        yield _hint(
            f"damaged lines in progress.jsonl, all left out: {now.damaged_lines}",
            "check the run's disk",
        )
    if now.cut_line:
        yield _hint(
            "the last line of progress.jsonl is cut off and left out",
            "its writer was killed, or the file was copied while it was written",
        )
    if now.hangs:
        yield _hint(f"hangs of the learner: {now.hangs}", f"see {now.run}/hangs.jsonl")


def _store(now: Snapshot) -> Iterator[Finding]:
    if now.buffer.damage:
        yield _problem(
            f"the store cannot be read: {now.buffer.damage}",
            "restore it from a copy that r3l-buffer compact made",
        )
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
    if failed := now.buffer.stats.archive_failed:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(failed.items()))
        yield _problem(
            f"files of the archive could not be written: {kinds}",
            f"the groups stay in the store until it can; see {now.run}/logs/buffer.log",
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


def _overdue(now: Snapshot) -> Iterator[Finding]:
    progress, version = now.progress, now.buffer.stats.learner_version
    if not now.alive:
        return
    if progress.next_s is not None and progress.step_s is not None:
        late = -progress.next_s
        if late > OVERDUE * progress.step_s:
            yield _problem(
                f"the next step is overdue by {time_span(late)}; "
                f"a step takes {time_span(progress.step_s)}"
            )
    old = [a for a in now.actors if version - a.version > max(now.max_staleness, 1)]
    old.sort(key=lambda actor: -actor.version)
    for who, newest_of_them, name in _together(old):
        weights = f"{newest_of_them.version}" + (" or older" if who != name else "")
        yield _problem(
            f"{who} has weights v{weights}, the learner has v{version}",
            f"see {now.run}/logs/{name}.log for why it does not load newer ones",
        )


def _together(actors: Sequence[ActorState]) -> Iterator[tuple[str, ActorState, str]]:
    """Yields whom a finding is about, its first actor, and the name of its last actor, whose log
    shows it best. A few actors get a finding each, many actors share one. The worst actor must be
    last."""
    if len(actors) > SAMPLE:
        worst = [_name(actor) for actor in reversed(actors)]
        yield f"each of {len(actors)} actors ({such_as(worst)})", actors[0], worst[0]
        return
    yield from ((_name(actor), actor, _name(actor)) for actor in actors)


def _name(actor: ActorState) -> str:
    return actor.process or actor.name


def _learning(now: Snapshot) -> Iterator[Finding]:
    """Reports why the run teaches its policy little or nothing. The reasons are found in
    launch.inspection.learning. Also reports the guidance gain, and the reliance of its retries."""
    for reason in now.learns_nothing:
        if reason.alarm:
            yield _problem(f"the run learns little or nothing: {reason.what}", reason.remedy)
        else:
            yield _hint(reason.what, reason.remedy)
    if now.guidance is not None:
        yield _hint(now.guidance.what, now.guidance.remedy)
    if relied := reliance_of_retries(RunFolder(Path(now.run)).store):
        yield _hint(relied, "")


def _pace(now: Snapshot) -> Iterator[Finding]:
    running = sum(actor.requests for actor in now.actors)
    waiting = now.progress.session_waits if now.alive else 0.0
    if waiting > WAITING * (running + waiting):
        yield _hint(
            f"{waiting:.0f} attempts wait for the environment, so the engines lack requests",
            "raise env.workers (processes per actor and environment), or `sessions` in its EnvSpec",
        )


def _agents(now: Snapshot) -> Iterator[Finding]:
    """Reports if little of what agents sample is trained, or if a name of a model is undecided."""
    for alarm in now.agent_alarms:
        yield _problem(f"agents: {alarm.what}", alarm.remedy)


def _reward(now: Snapshot) -> Iterator[Finding]:
    """Reports why the reward may be hacked, with attempts from the store."""
    found = examples(RunFolder(Path(now.run)).store, now.reward)
    for suspicion, example in zip(now.reward, found, strict=True):
        for_example = f"; for example {example}" if example else ""
        yield _problem(f"the reward may be hacked: {suspicion.what}{for_example}", suspicion.remedy)


def judged_again(folder: RunFolder, attempts: int) -> Iterator[Finding]:
    """Judges the newest attempts again, and reports how many rewards differ. Raises UserError if
    there are none, or if they cannot be judged."""
    groups = newest(folder.store, attempts)
    sample = regrade_sample(groups, folder.settings())
    if not sample.judged:
        why = "; ".join(sample.left_out) or "its store has no finished group"
        raise UserError(f"{folder.path}: no attempt could be judged again: {why}")
    for line in sample.left_out:
        yield _hint(f"judging again {line}")
    low, high = sample.interval
    what = (
        f"of {sample.judged} attempts judged again {len(sample.changed)} got another reward "
        f"({low:.0%} to {high:.0%})"
    )
    if not sample.disagrees:
        yield _hint(what)
        return
    shown = "; ".join(
        f"group {group} slot {slot}: {before:.3g}, then {after:.3g}"
        for group, slot, before, after in sample.changed[:EXAMPLES]
    )
    yield _problem(
        f"the judge disagrees with itself: {what}; for example {shown}",
        "ask it at temperature 0, or several times for a mean; or judge by a rule",
    )


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
