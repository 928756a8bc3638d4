"""Takes a snapshot of a run from outside: processes, progress, buffer, leases, errors.

    /proc ─► processes             progress.jsonl ─► steps, ETA
    buffer service ─► stats        .last-heartbeat ─► what the learner does
    store, read-only ─► leases     logs/ ─► last errors

Nothing is started, stopped or written. Times are seconds; `*_ago_s` and ages count from `at`.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from buffer import BufferClient
from buffer.storage.counts import under
from buffer.storage.store import Store
from buffer.wire.operations import BufferStats
from r3l.endpoints import reached
from r3l.errors import BufferUnavailable, R3LError
from r3l.files.progress_lines import StepLine
from r3l.files.run_folder import RunFolder

REPLY_S = 5.0  # timeout of the buffer's reply
BALANCED = 0.1  # idle share of learner and actors below which neither limits the other
RECENT = 10  # steps whose median time the forecast uses
ERRORS = 3  # of each log: the last ones
LOG_BYTES = 1 << 18  # of each log's end that are searched for errors
ROLES = {"buffer.cli": "buffer", "learner.cli": "learner", "actors.cli": "actor"}
ERROR_LINE = re.compile(
    r"\b(ERROR|CRITICAL)\b|^[\w.]*(Error|Exception|Interrupt)\b: |^r3l-\w+ hangs"
)


@dataclass
class Process:
    """One process of the run on this machine. `state`: as the system reports it, like `stopped`."""

    name: str
    pid: int
    state: str
    since: float
    memory_bytes: int
    parent: int
    keys: str = ""  # folder of the run's keys


@dataclass
class Lease:
    """A group that an actor is working on."""

    group: str
    actor: str
    task: str
    resolved: int
    slots: int
    age_s: float
    expires_s: float


@dataclass
class Progress:
    """The finished steps and the forecast, whose fields are None if not known yet.

    `learner_idle`, `actor_idle`: shares of the time of the last RECENT steps in which the learner
    waited for groups, and in which the actors' engines waited for leases.
    """

    step: int
    steps: int
    last_ago_s: float | None = None
    step_s: float | None = None
    next_s: float | None = None  # negative: overdue by so much
    end_s: float | None = None
    learner_idle: float | None = None
    actor_idle: float | None = None


@dataclass
class Buffer:
    """The state of the buffer service and its store.

    `reply_s`: how long the reply took, None if there was no reply; `error`: why. `logged_ago_s`:
    since the service last wrote to its log. `stats`: its reply, or figures read from the store if
    there was no reply. `map_free_bytes`: None if the store could not be read.
    """

    endpoint: str = ""
    reply_s: float | None = None
    error: str = ""
    logged_ago_s: float | None = None
    map_free_bytes: int | None = None
    stats: BufferStats = field(default_factory=BufferStats)


@dataclass
class Actor:
    """What the buffer knows about an actor. `process`: its name in the launcher, or "";
    `worked_ago_s`: since it last leased or completed a group that is still stored; None if
    there is no such group."""

    name: str
    process: str
    seen_ago_s: float
    version: int
    requests: int
    idle_share: float
    worked_ago_s: float | None = None


@dataclass
class Snapshot:
    """Everything that `status` shows and `doctor` judges."""

    run: str
    at: float
    processes: list[Process]
    launcher: int | None
    progress: Progress
    needed: int  # groups of a step
    max_staleness: int
    lease_s: float
    hang_s: float
    learner_doing: str = ""
    heartbeat_ago_s: float | None = None
    hangs: int = 0
    damaged_lines: int = 0  # of its progress file
    buffer: Buffer = field(default_factory=Buffer)
    actors: list[Actor] = field(default_factory=list)
    leases: list[Lease] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether any process of the run is running on this machine."""
        return bool(self.processes)

    def process(self, name: str) -> Process | None:
        """Returns the process called `name`, or None."""
        return next((process for process in self.processes if process.name == name), None)


def take(run: RunFolder) -> Snapshot:
    """Takes a snapshot of a run. Raises UserError if the run's settings cannot be read."""
    config, history, now = run.settings(), run.history(), time.time()
    processes = processes_of(run.path)
    snapshot = Snapshot(
        run=str(run.path),
        at=now,
        processes=processes,
        launcher=_launcher(processes),
        progress=forecast(history.steps, config.learner.steps, now),
        needed=config.learner.groups_per_step,
        max_staleness=config.buffer.max_staleness,
        lease_s=config.buffer.lease_s,
        hang_s=config.learner.hang_s,
        hangs=len(run.hangs()),
        damaged_lines=history.damaged,
        errors=last_errors(run.logs),
    )
    _add_heartbeat(snapshot, run)
    log = run.logs / "buffer.log"
    if log.is_file():
        snapshot.buffer.logged_ago_s = now - log.stat().st_mtime
    worked_ago_s = _add_store(snapshot, run)
    if snapshot.process("buffer") is not None:
        _add_stats(snapshot, run, worked_ago_s)
    return snapshot


def processes_of(run: Path) -> list[Process]:
    """Finds the run's processes on this machine that the user may see, buffer first."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            words = process.cmdline()
            role = next((role for module, role in ROLES.items() if module in words), None)
            if role is None or "--config" not in words:
                continue
            config = Path(process.cwd()) / words[words.index("--config") + 1]
            if config.parent.resolve() == run.resolve():
                processes.append(_process(process, role, words))
    order = list(ROLES.values())
    return sorted(
        processes, key=lambda p: (order.index(p.name.partition("-")[0]), len(p.name), p.name)
    )


def _process(process: psutil.Process, role: str, words: list[str]) -> Process:
    name, keys = role, ""
    if role == "actor":
        name = words[words.index("--name") + 1] if "--name" in words else role
    elif any("deepspeed" in word for word in words):
        name = "learner-launcher"
    elif role == "learner" and (rank := process.environ().get("RANK")):
        name = f"learner-{rank}" if rank != "0" else "learner"
    if "--keys" in words:
        file = Path(process.cwd()) / words[words.index("--keys") + 1]
        keys = str(file.parent if file.suffix == ".json" else file)
    return Process(name, process.pid, process.status(), process.create_time(),
                   process.memory_info().rss, process.ppid(), keys)  # fmt: skip


def _launcher(processes: list[Process]) -> int | None:
    """The pid of the launcher that started the buffer or the actors; None if it has ended."""
    started = [process for process in processes if not process.name.startswith("learner-")]
    parents = {process.parent for process in started} - {process.pid for process in processes}
    return next((pid for pid in parents if pid > 1), None)


def forecast(steps: Sequence[StepLine], planned: int, now: float) -> Progress:
    """Forecasts when the next and the last step will end, from the median recent step time."""
    if not steps:
        return Progress(0, planned)
    last = steps[-1]
    progress = Progress(last.step, planned, now - last.time)
    progress.learner_idle = _recent_mean(steps, "learner/idle_share")
    progress.actor_idle = _recent_mean(steps, "actor/idle_share")
    times = [step.time for step in steps[-RECENT - 1 :]]
    if len(times) > 1 and last.step < planned:
        progress.step_s = statistics.median(b - a for a, b in pairwise(times))
        progress.next_s = last.time + progress.step_s - now
        progress.end_s = max(progress.next_s, 0) + progress.step_s * (planned - last.step - 1)
    return progress


def _recent_mean(steps: Sequence[StepLine], tag: str) -> float | None:
    """The mean of a metric over the last RECENT steps; None if no step has the metric."""
    values = [line.metrics[tag] for line in steps[-RECENT:] if tag in line.metrics]
    return statistics.fmean(values) if values else None


def last_errors(logs: Path) -> dict[str, list[str]]:
    """The last error lines of each log, oldest first."""
    errors: dict[str, list[str]] = {}
    for log in sorted(logs.glob("*.log")):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        if matches := [line.strip() for line in lines if ERROR_LINE.search(line)]:
            errors[log.stem] = matches[-ERRORS:]
    return errors


def _add_heartbeat(snapshot: Snapshot, run: RunFolder) -> None:
    """Add the learner's activity, unless its last heartbeat is from an earlier process."""
    last, learner = run.heartbeat(), snapshot.process("learner")
    if last is not None and (learner is None or last.time >= learner.since):
        snapshot.heartbeat_ago_s, snapshot.learner_doing = snapshot.at - last.time, last.doing


def _add_store(snapshot: Snapshot, run: RunFolder) -> dict[str, float]:
    """Add groups and leases from the store; returns each actor's `worked_ago_s`."""
    if not (run.store / "data.mdb").is_file():
        return {}
    try:
        with contextlib.closing(Store(run.store, read_only=True)) as store, store.read() as txn:
            counts = txn.counts()
            snapshot.buffer.stats = BufferStats(
                train=dict(under(counts, "group/train")),
                puts=counts["puts"],
                learner_version=txn.progress().version,
                free_bytes=store.free_bytes,
            )
            snapshot.buffer.map_free_bytes = store.map_free_bytes
            known = [row for row in txn.live() if row.actor]
    except R3LError as error:
        snapshot.buffer.error = str(error)
        return {}
    snapshot.leases = [
        Lease(row.group_id, row.actor, row.task_id, len(row.resolved), row.slots,
              snapshot.at - row.times.get("leased", snapshot.at), row.deadline - snapshot.at)
        for row in known if row.unfinished
    ]  # fmt: skip
    worked_ago_s: dict[str, float] = {}
    for row in known:
        when = row.times.get("complete", row.times.get("leased", snapshot.at))
        ago_s = snapshot.at - when
        worked_ago_s[row.actor] = min(ago_s, worked_ago_s.get(row.actor, ago_s))
    return worked_ago_s


def _add_stats(snapshot: Snapshot, run: RunFolder, worked_ago_s: dict[str, float]) -> None:
    """Add what the service reports about itself and its actors."""
    buffer = snapshot.buffer
    buffer.endpoint = _last_line(run.logs / "buffer.log", "r3l-buffer ready") or ""
    if not buffer.endpoint:
        buffer.error = "it has not yet printed its address"
        return
    process = snapshot.process("buffer")
    keys = Path(process.keys) / "client.json" if process and process.keys else None
    began = time.monotonic()
    try:
        with BufferClient(
            reached(buffer.endpoint), name="r3l-launch status", timeout_s=REPLY_S, keys=keys
        ) as client:
            buffer.stats = client.stats()
    except BufferUnavailable:
        buffer.error = f"no reply for {REPLY_S:g} s"
        return
    except R3LError as error:
        buffer.error = str(error)
        return
    buffer.reply_s = time.monotonic() - began
    known = {}
    for log in run.logs.glob("actor-*.log"):
        known[_last_line(log, "r3l-actor ready")] = log.stem
    snapshot.actors = [
        Actor(
            name, known.get(name, ""), numbers["seen_s"], int(numbers.get("weight_version", 0)),
            int(numbers.get("requests_running", 0)), numbers.get("idle_share", 0.0),
            worked_ago_s.get(name),
        )
        for name, numbers in sorted(buffer.stats.actors.items())
        if name in known or numbers["seen_s"] < snapshot.lease_s
    ]  # fmt: skip


def _last_line(log: Path, word: str) -> str | None:
    """The rest of the last line that begins with `word`. A log holds all starts of a process, so
    the last line counts."""
    if not log.is_file():
        return None
    rest = None
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith(word):
                rest = line.removeprefix(word).strip()
    return rest
