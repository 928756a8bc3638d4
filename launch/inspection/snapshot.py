"""Takes a snapshot of a run from outside: processes, progress, buffer, errors.

    /proc ─► processes_of          progress.jsonl ─► forecast
    store, read-only ─► stored     .last-heartbeat ─► what the learner does
    buffer service ─► ask ─► actors_of               logs/ ─► last_errors

Starts, stops and writes nothing. Times are in seconds. `*_ago_s` count back from `Snapshot.at`.
"""

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
from buffer.storage.store_path import has_store
from buffer.wire.operations import BufferStats
from launch.inspection.agent_training import Alarm, alarms
from launch.inspection.learning import Reason, reasons
from launch.inspection.retry_reliance import guidance
from launch.inspection.reward_rules import Suspicion, suspicions
from r3l.errors import BufferUnavailable, R3LError, UserError
from r3l.run import bill
from r3l.run.bill import Usage
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import ProcessStatus, RunFolder
from r3l.run.process.endpoints import reached
from r3l.run.process.process_list import every_process

REPLY_S = 5.0  # timeout of the buffer's reply
BALANCED = 0.1  # idle share of learner and actors below which neither limits the other
RECENT = 10  # steps whose median time the forecast uses
ERRORS = 3  # lines of each log, the last ones
LOG_BYTES = 1 << 18  # of each log's end that are searched for errors
ROLES = {"buffer.cli": "buffer", "learner.cli": "learner", "actors.cli": "actor"}
ERROR_LINE = re.compile(
    r"\b(ERROR|CRITICAL)\b|^[\w.]*(Error|Exception|Interrupt)\b: |^r3l-\w+ hangs"
)


@dataclass
class Process:
    """One process of the run on this machine. `state`: psutil's status, such as `stopped`."""

    name: str
    pid: int
    state: str
    since: float
    memory_bytes: int
    parent: int
    keys: str = ""  # folder of the key file of a buffer or actor


@dataclass
class Forecast:
    """A run's progress, and a forecast. A field is None if it is not known yet.

    `learner_idle`: share of the time in which the learner waited for groups. `actor_idle`: share of
    the time in which the engines waited for leases. `session_waits`: mean number of attempts that
    waited for a process of their environment. All three cover the last RECENT steps.
    """

    step: int
    steps: int
    last_ago_s: float | None = None
    step_s: float | None = None
    next_s: float | None = None  # negative if overdue
    end_s: float | None = None
    learner_idle: float | None = None
    actor_idle: float | None = None
    session_waits: float = 0.0
    calls_per_s: float | None = None  # of agents, in the last step


@dataclass
class Buffer:
    """The state of the buffer service and its store.

    `reply_s`: how long the service took to reply, None without a reply. `error`: why there is no
    reply. `damage`: why the store cannot be read. `stats`: the reply, or else figures from the
    store. `map_free_bytes`: None if the store could not be read.
    """

    endpoint: str = ""
    reply_s: float | None = None
    error: str = ""
    map_free_bytes: int | None = None
    stats: BufferStats = field(default_factory=BufferStats)
    damage: str = ""


@dataclass
class ActorState:
    """What the buffer knows about an actor. `process`: the actor's name in the launcher, or ""."""

    name: str
    process: str
    seen_ago_s: float
    version: int
    requests: int
    idle_share: float


@dataclass
class Snapshot:
    """The data of `status` and `doctor`."""

    run: str
    at: float
    processes: list[Process]
    launcher: int | None
    progress: Forecast
    needed: int  # groups of a step
    max_staleness: int
    lease_s: float
    hang_s: float
    learner_doing: str = ""
    heartbeat_ago_s: float | None = None
    hangs: int = 0
    damaged_lines: int = 0  # of the run's progress file
    cut_line: bool = False  # at the end of it
    learns_nothing: list[Reason] = field(default_factory=list)
    guidance: Reason | None = None
    agent_train: str = ""  # the setting actor.agent.train
    agent_alarms: list[Alarm] = field(default_factory=list)
    used: Usage = field(default_factory=Usage)
    bill: str = ""  # what was used, with its price, as one line
    budget: dict[str, tuple[float, float]] = field(default_factory=dict)  # (used, limit)
    damaged_bill: str = ""  # why it cannot be read, and what to do
    reward: list[Suspicion] = field(default_factory=list)  # why it may be hacked
    buffer: Buffer = field(default_factory=Buffer)
    actors: list[ActorState] = field(default_factory=list)
    errors: dict[str, list[str]] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        """Whether any process of the run is running on this machine."""
        return bool(self.processes)

    def process(self, name: str) -> Process | None:
        return next((process for process in self.processes if process.name == name), None)


def take(run: RunFolder) -> Snapshot:
    """Takes a snapshot of a run. Raises UserError if the run's settings cannot be read. Reads all
    of progress.jsonl, because some reasons depend on the whole run; for the cost, see
    `RunFolder.history`."""
    config, history, beat, now = run.settings(), run.history(), run.heartbeat(), time.time()
    used, damaged_bill = _used(run)
    processes = processes_of(run.path)
    learner = next((process for process in processes if process.name == "learner"), None)
    if beat is not None and learner is not None and beat.time < learner.since:
        beat = None  # of an earlier learner
    buffer = stored(run.store, is_needed=bool(history.steps))
    if service := next((process for process in processes if process.name == "buffer"), None):
        ask(buffer, run.status_of("buffer"), service.keys)
    own = {process.pid for process in processes}
    parents = {process.parent for process in processes if not process.name.startswith("learner-")}
    return Snapshot(
        run=str(run.path),
        at=now,
        processes=processes,
        launcher=next((pid for pid in parents - own if pid > 1), None),
        progress=forecast(history.steps, config.learner.steps, now),
        needed=config.learner.groups_per_step,
        max_staleness=config.buffer.max_staleness,
        lease_s=config.buffer.lease_s,
        hang_s=config.learner.hang_s,
        learner_doing=beat.doing if beat else "",
        heartbeat_ago_s=now - beat.time if beat else None,
        hangs=len(run.hangs()),
        damaged_lines=history.damaged,
        cut_line=history.cut,
        learns_nothing=reasons(history.steps, history.evaluations),
        guidance=guidance(history.steps),
        agent_train=config.actor.agent.train,
        agent_alarms=alarms(history.steps),
        used=used,
        bill=bill.line(used, config.cost),
        budget={} if damaged_bill else bill.against(used, config.budget, config.cost),
        damaged_bill=damaged_bill,
        reward=suspicions(history),
        buffer=buffer,
        actors=actors_of(buffer.stats, run, config.buffer.lease_s),
        errors=last_errors(run.logs),
    )


def _used(run: RunFolder) -> tuple[Usage, str]:
    """Returns what a run has used, and why its bill cannot be read."""
    try:
        return bill.total(run.bill().values()), ""
    except UserError as error:
        return Usage(), str(error)


def processes_of(run: Path) -> list[Process]:
    """Finds a run's processes on this machine, buffer first. Skips any that the user cannot see."""
    processes = []
    for process in every_process():
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            words = process.cmdline()
            role = next((role for module, role in ROLES.items() if module in words), "")
            given = dict(pairwise(words))  # the value of each option
            here = Path(process.cwd())
            if not role or (here / given.get("--config", "")).parent.resolve() != run.resolve():
                continue
            name = given.get("--name", role)
            if any("deepspeed" in word for word in words):
                name = "learner-launcher"
            elif role == "learner" and (rank := process.environ().get("RANK", "0")) != "0":
                name = f"learner-{rank}"
            keys = str((here / given["--keys"]).parent) if "--keys" in given else ""  # a file in it
            processes.append(Process(name, process.pid, process.status(), process.create_time(),
                                     process.memory_info().rss, process.ppid(), keys))  # fmt: skip
    order = list(ROLES.values())
    return sorted(
        processes, key=lambda p: (order.index(p.name.partition("-")[0]), len(p.name), p.name)
    )


def forecast(steps: Sequence[StepLine], planned: int, now: float) -> Forecast:
    """Forecasts when the next step and the run will end. Uses the median time of recent steps."""
    if not steps:
        return Forecast(0, planned)
    last = steps[-1]
    idle = [
        [line.metrics[tag] for line in steps[-RECENT:] if tag in line.metrics]
        for tag in ("learner/idle_share", "actor/idle_share")
    ]
    learner, actor = (statistics.fmean(shares) if shares else None for shares in idle)
    progress = Forecast(last.step, planned, now - last.time, learner_idle=learner, actor_idle=actor)
    progress.calls_per_s = last.metrics.get("agent/calls_per_s")
    times = [step.time for step in steps[-RECENT - 1 :]]
    if len(times) > 1 and last.step < planned:
        first = steps[-min(len(steps), RECENT + 1)]
        waited = [step.metrics.get("actor/session_wait_s", 0.0) for step in (first, last)]
        progress.session_waits = (waited[1] - waited[0]) / max(last.time - first.time, 1e-3)
        progress.step_s = statistics.median(b - a for a, b in pairwise(times))
        progress.next_s = last.time + progress.step_s - now
        progress.end_s = max(progress.next_s, 0) + progress.step_s * (planned - last.step - 1)
    return progress


def last_errors(logs: Path) -> dict[str, list[str]]:
    """Returns the last error lines of each log, oldest first, keyed by process."""
    errors: dict[str, list[str]] = {}
    for log in sorted(logs.glob("*.log")):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        if matches := [line.strip() for line in lines if ERROR_LINE.search(line)]:
            errors[log.stem] = matches[-ERRORS:]
    return errors


def stored(folder: Path, *, is_needed: bool = False) -> Buffer:
    """Reads from the store how many groups and results it has, and how much space is free.
    `is_needed`: the run has steps, so a missing store was lost."""
    if not has_store(folder):
        return Buffer(damage=f"{folder / 'data.mdb'} is missing" if is_needed else "")
    try:
        with Store(folder, read_only=True) as store, store.read() as txn:
            counts = txn.counts()
            stats = BufferStats(
                train=dict(under(counts, "group/train")),
                puts=counts["puts"],
                learner_version=txn.progress().version,
                free_bytes=store.free_bytes,
            )
            return Buffer(map_free_bytes=store.map_free_bytes, stats=stats)
    except R3LError as error:
        return Buffer(damage=str(error))


def ask(buffer: Buffer, status: ProcessStatus | None, keys: str) -> None:
    """Stores the buffer service's stats, or an error, in `buffer`. `keys`: the run's key folder, or
    ""."""
    if status is None:
        buffer.error = "it has not yet reported its address"
        return
    buffer.endpoint, began = status.address, time.monotonic()
    client_keys = Path(keys) / "client.json" if keys else None
    try:
        with BufferClient(
            reached(buffer.endpoint), name="r3l-launch status", timeout_s=REPLY_S, keys=client_keys
        ) as client:
            buffer.stats = client.stats()
        buffer.reply_s = time.monotonic() - began
    except BufferUnavailable as error:
        buffer.error = error.facts.get("refused", f"no reply for {REPLY_S:g} s")
    except R3LError as error:
        buffer.error = str(error)


def actors_of(stats: BufferStats, run: RunFolder, lease_s: float) -> list[ActorState]:
    """Returns the launcher's actors, and any others that sent a message within the last `lease_s`
    seconds."""
    actors = []
    for name, numbers in sorted(stats.actors.items()):
        process = name.rpartition(".")[0]
        status = run.status_of(process)
        known = status is not None and status.name == name  # not an earlier actor of this process
        if known or numbers["seen_s"] < lease_s:
            version, requests = numbers.get("weight_version", 0), numbers.get("requests_running", 0)
            actors.append(ActorState(name, process if known else "", numbers["seen_s"],
                        int(version), int(requests), numbers.get("idle_share", 0.0)))  # fmt: skip
    return actors
