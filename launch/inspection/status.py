"""`r3l-launch status`: shows what each process of a run is doing, and what it is waiting for."""

import time
from collections.abc import Iterator

import click
from msgspec import to_builtins

from buffer.viewer import page
from launch.inspection import snapshot
from launch.inspection.agent_training import asked_words, trained_words
from launch.inspection.learning import heading
from launch.inspection.many_actors import is_many, such_as, summary, worst
from launch.inspection.snapshot import ActorState, Process, Snapshot
from r3l.run.actor_metrics import ActorMetrics, combined
from r3l.run.bill import shown
from r3l.run.files.run_folder import RunFolder, run_folder
from r3l.run.process.command_line import echo
from r3l.text import time_span

MIB = 1 << 20
WAITS = "waiting for "
MANY_LOGS = 8  # of more logs with errors than are shown one by one


@click.command()
@click.argument("name", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="print everything as JSON")
def status(name: str, as_json: bool) -> None:
    """Show what a run's processes do and wait for, their last errors, and when the next step ends.
    This command changes nothing."""
    now = snapshot.take(RunFolder(run_folder(name)).require_settings())
    if as_json:
        values = to_builtins(now) | {"waits": list(waits(now))}
        echo(page.as_json(values).decode())
    else:
        echo("\n".join(lines(now)))


def lines(now: Snapshot) -> Iterator[str]:
    yield f"run {now.run}: {_progress(now)}"
    yield ""
    if now.alive:
        yield from _processes(now)
    else:
        yield "no process of this run is on this machine"
    yield ""
    groups = ", ".join(
        f"{state} {count}" for state, count in now.buffer.stats.train.items() if count
    )
    yield f"groups: {groups or 'none'}; a step takes {now.needed}"
    yield from _agents(now)
    if now.used.tokens:
        yield f"bill: {now.bill}"
    for name, (have, limit) in now.budget.items():
        yield f"{name}={shown(limit)}: {have / limit:.0%} used"
    if now.buffer.damage:
        yield f"the store cannot be read: {now.buffer.damage}"
    if now.damaged_bill:
        yield f"the bill cannot be read: {now.damaged_bill}"
    if now.damaged_lines:
        yield f"damaged lines of progress.jsonl, all left out: {now.damaged_lines}"
    if now.cut_line:
        yield "the last line of progress.jsonl is cut off and left out"
    if waiting := list(waits(now)):
        yield from ["", "who waits:", *(f"  {line}" for line in waiting)]
    if now.learns_nothing:
        yield ""
        yield from (f"{heading(r)}: {r.what}; {r.remedy}" for r in now.learns_nothing)
    if now.errors:
        yield from ["", "last errors in the logs:"]
        yield from _errors(now)


def waits(now: Snapshot) -> Iterator[str]:
    """Yields lines about what the processes wait for. Yields none if the run has ended."""
    if not now.alive:
        return
    groups = now.buffer.stats.train
    complete = groups.get("complete", 0)
    in_work = groups.get("leased", 0) + groups.get("filling", 0)
    if now.process("buffer") is None:
        yield "all wait for the buffer, which is not running"
    elif now.buffer.reply_s is None:
        yield f"all may be waiting for the buffer: {now.buffer.error}"
    if now.process("learner") is not None and now.learner_doing.startswith(WAITS):
        since = now.progress.last_ago_s
        yield (
            f"the learner waits for {now.learner_doing.removeprefix(WAITS)}"
            + ("" if since is None else f", its last step ended {time_span(since)} ago")
            + f": {complete} of {now.needed} groups are complete, {in_work} in work"
        )
    limit = now.needed * (now.max_staleness + 1)
    idle = [a.process or a.name for a in now.actors if a.idle_share > 0.5 and not a.requests]
    who = [f"{name} waits" for name in idle]
    if is_many(now.actors) and len(idle) > 1:
        who = [f"{len(idle)} of {len(now.actors)} actors wait ({such_as(idle)})"]
    for waiting in who:
        yield (
            f"{waiting} for a lease: {complete} groups are complete, {in_work} in work, and at "
            f"most {limit} may be ahead of the learner (buffer.max_staleness)"
        )


def _processes(now: Snapshot) -> Iterator[str]:
    """Formats the table of processes: a line for each; of many actors, only for the worst few."""
    yield f"{'process':<18}{'pid':>8}  {'state':<10}{'memory':>10}  {'since':<10}does"
    actors = [process for process in now.processes if process.name.startswith("actor")]
    if not is_many(actors):
        yield from (_process(now, process) for process in now.processes)
        return
    yield from (_process(now, process) for process in now.processes if process not in actors)
    yield from summary(now, actors)
    shown = worst(now, actors)
    yield from (_process(now, process) for process in shown)
    yield f"  and {len(actors) - len(shown)} other actors; --json lists all"


def _process(now: Snapshot, process: Process) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(process.since))
    memory = f"{process.memory_bytes / MIB:,.0f} MiB"
    return (
        f"{process.name:<18}{process.pid:>8}  {process.state:<10}{memory:>10}  {since:<10}"
        f"{_doing(now, process.name)}"
    )


def _errors(now: Snapshot) -> Iterator[str]:
    """Formats the last errors of each log. Of many logs, shows only some, with their last error,
    actors last."""
    if not is_many(list(now.errors)):
        for log, errors in now.errors.items():
            yield from (f"  {log}: {line:.160}" for line in errors)
        return
    logs = sorted(now.errors, key=lambda log: log.startswith("actor"))
    yield from (f"  {log}: {now.errors[log][-1]:.160}" for log in logs[:MANY_LOGS])
    yield f"  and {len(logs) - MANY_LOGS} other logs; --json lists all"


def _progress(now: Snapshot) -> str:
    progress = now.progress
    words = [f"step {progress.step} of {progress.steps}"]
    if progress.last_ago_s is not None:
        words.append(f"the last one ended {time_span(progress.last_ago_s)} ago")
    if now.alive and progress.next_s is not None and progress.step_s is not None:
        due = f"in about {time_span(progress.next_s)}"
        if progress.next_s < 0:
            due = f"overdue by {time_span(-progress.next_s)}"
        words.append(f"the next one is {due} (median {time_span(progress.step_s)})")
        words.append(f"the run ends in about {time_span(progress.end_s or 0.0)}")
    if now.alive and now.launcher is None:
        words.append("its launcher has ended")
    return ", ".join(words)


def _doing(now: Snapshot, name: str) -> str:
    if name == "buffer":
        reply = now.buffer.reply_s
        return now.buffer.error if reply is None else f"replied in {reply * 1000:.0f} ms"
    if name.startswith("learner"):
        if now.heartbeat_ago_s is None or name != "learner":
            return "starts" if name == "learner" else ""
        return f"{now.learner_doing}, heartbeat {time_span(now.heartbeat_ago_s)} ago"
    actor = next((actor for actor in now.actors if actor.process == name), None)
    return "has not contacted the buffer" if actor is None else _actor(actor, now)


def _actor(actor: ActorState, now: Snapshot) -> str:
    behind = now.buffer.stats.learner_version - actor.version
    return (
        f"{actor.requests} requests, weights v{actor.version}"
        + (f" ({behind} behind)" if behind > 0 else "")
        + f", idle {actor.idle_share:.0%}, heard {time_span(actor.seen_ago_s)} ago"
    )


def _agents(now: Snapshot) -> Iterator[str]:
    """Formats lines about the agents of all actors, if the run has any."""
    actors = [numbers for numbers in now.buffer.stats.actors.values() if "agent_calls" in numbers]
    if not actors:
        return
    records = [ActorMetrics.read(numbers) for numbers in actors]
    counts = combined(records, records)
    running, calls = counts["agent/running"], counts["agent/calls"]
    rate = now.progress.calls_per_s
    drops = now.buffer.stats.slot_drops
    failed = ", ".join(f"{cause} {count}" for cause, count in sorted(drops.items()))
    yield (
        f"agents: {running:.0f} running, {calls:,.0f} calls"
        + ("" if rate is None else f", {rate:.1f} a second in the last step")
        + f"; failed slots: {failed or 'none'}"
    )
    if trained := trained_words(counts, now.agent_train):
        yield f"  {trained}"
    if asked := asked_words(counts):
        yield f"  calls by the name of the model: {asked}"
    yield from (f"  {alarm.what}; {alarm.remedy}" for alarm in now.agent_alarms)
