"""Reads and writes the files in a run's folder.

    config.yaml, config.next.yaml, config.before-step-000051.yaml      settings
    progress.jsonl                                                     steps and evaluations
    machines.jsonl                                                     what steps are computed on
    .last-heartbeat, hangs.jsonl, skipped.jsonl, limits.json           health of the learner
    processes/actor-0.json                                             what a process reports
    bill.json                                                          what it has used so far
    best/evaluation.json, versions.json, .wandb-id                     outputs
    data-sets.json                                                     commits of what it reads

Some files may be missing. An empty file counts as missing, because a power loss may leave a file
empty. Damaged files and empty settings raise an error that names the file. Other modules own the
folders, such as `buffer/`, `checkpoints/` and `evaluations/`.

    config.yaml ──(resume with other settings)──► config.next.yaml, which every process reads
         │                                              │ after the first step with the new settings
         └─► config.before-step-000051.yaml             └─► config.yaml
"""

import fcntl
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self, TextIO

import msgspec

from r3l.errors import UserError
from r3l.files.checksums import text_with_checksum
from r3l.files.user_file import user_path
from r3l.files.whole_file import read_json, write_json, write_whole
from r3l.run import config as configuration
from r3l.run.bill import Usage
from r3l.run.config import RunConfig
from r3l.run.files import json_lines, progress_lines
from r3l.run.files.progress_lines import (
    EVAL_BEGINS,
    STEP_BEGINS,
    EvalLine,
    History,
    ProgressLine,
    StepLine,
)
from r3l.run.process.last_heartbeat import HEARTBEAT
from r3l.text import plain

log = logging.getLogger(__name__)
BEST = "best"
"""The folder of the weights with the best evaluation."""
JOURNAL = "journal"
"""The folder of published weights (r3l.weights.journal)."""
EVALUATION = "evaluation.json"
PROGRESS_BYTES = 64 << 20


@dataclass(frozen=True)
class Heartbeat:
    """A learner's heartbeat. `doing`: what the learner began to do. `time`: when the heartbeat was
    written, by the file system's clock."""

    doing: str
    time: float


@dataclass(frozen=True)
class ProcessStatus:
    """A process's report about itself. `address`: where its service listens, if it has one.
    `name`: an actor's name in the buffer."""

    state: Literal["ready", "done"]
    address: str = ""
    name: str = ""


@dataclass(frozen=True)
class Hang:
    """A hang of the learner. `doing`: what the learner was doing. `ended_by`: who ended the
    learner, "launcher" or "itself"."""

    doing: str
    ended_by: str
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Machine:
    """The machine that computes the steps after version `step`. `facts`: see
    r3l.training.measures.processor."""

    step: int
    facts: Mapping[str, str]
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class SkippedStep:
    """A batch was skipped, because its loss or gradient is not finite."""

    version: int
    draw: int
    loss: str
    grad_norm: str
    groups: list[str]
    tasks: list[str]
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class LoweredLimits:
    """The learner lowered these settings because memory ran out."""

    tokens_per_micro_batch: Annotated[int, msgspec.Meta(ge=1)]


class RunFolder:
    """Reads and writes the files in a run's folder, `path`.

    Reading raises UserError if a file is damaged; writing raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs, self.store = path / "logs", path / "buffer"
        self.progress, self.machines_file = path / "progress.jsonl", path / "machines.jsonl"
        self.hangs_file, self.skipped_file = path / "hangs.jsonl", path / "skipped.jsonl"
        self.heartbeat_file, self.lock_file = path / HEARTBEAT, path / ".lock"
        self.processes = path / "processes"
        self.own_config, self._next = path / "config.yaml", path / "config.next.yaml"

    # ── settings ────────────────────────────────────────────────────────────────────────

    @property
    def exists(self) -> bool:
        """Whether a run has been started here."""
        return self.own_config.is_file()

    def require_settings(self) -> Self:
        """Returns this folder. Raises UserError if no run has been started here, or if the run has
        lost its settings."""
        if not self.require_run().exists:
            raise UserError(
                f"run {self.path}: has lost its config.yaml; restore it from a copy, or from the "
                "newest config.before-step-*.yaml there"
            )
        return self

    def require_run(self) -> Self:
        """Returns this folder, even if the run has lost its settings. Raises UserError if no run
        has been started here."""
        traces = (self.progress, self.store / "data.mdb")
        if not self.exists and not any(path.is_file() for path in traces):
            raise UserError(
                f"run {self.path}: has no config.yaml, so no run was started there; check the name"
            )
        return self

    def lock(self) -> TextIO:
        """Locks the folder until the returned file is closed. Raises UserError if another launcher
        holds the lock."""
        file = self.lock_file.open("a", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(
                f"run {self.path}: another r3l-launch is using it; stop that one, or choose "
                "another name"
            ) from None
        return file

    @property
    def config_file(self) -> Path:
        """The file of the current configuration."""
        return self._next if self._next.exists() else self.own_config

    def settings(self) -> RunConfig:
        """Reads the configuration that the run's processes use now."""
        self.require_settings()
        return _load(self.config_file)

    def own_settings(self) -> RunConfig:
        """Reads config.yaml: the settings of the last step, or of the start if there is no step."""
        self.require_settings()
        return _load(self.own_config)

    def settings_of(self, step: int) -> RunConfig:
        """Reads the configuration that the run used for an optimizer step."""
        self.require_settings()
        changed = {_step_of(path): path for path in self.path.glob("config.before-step-*.yaml")}
        later = min((at for at in changed if at > step), default=None)
        return _load(self.own_config if later is None else changed[later])

    def write_settings(self, config: RunConfig) -> None:
        """Writes the configuration for the run's processes. The previous configuration stays in
        config.yaml until the first step with the new configuration."""
        self._next.unlink(missing_ok=True)
        if not self.own_config.exists():
            write_whole(self.own_config, text_with_checksum(configuration.dump(config)))
        elif self.own_settings() != config:
            write_whole(self._next, text_with_checksum(configuration.dump(config)))

    def settle_settings(self, step: int) -> None:
        """Backs up config.yaml, then replaces it with the settings of the finished step."""
        if not self._next.exists() or self._next.read_bytes() == self.own_config.read_bytes():
            return
        before = self.path / f"config.before-step-{step:06d}.yaml"
        write_whole(before, self.own_config.read_bytes())
        write_whole(self.own_config, self._next.read_bytes())

    def drop_next_settings(self) -> None:
        """Removes config.next.yaml at the end of a run, whether or not a step has used it."""
        self._next.unlink(missing_ok=True)

    # ── progress ────────────────────────────────────────────────────────────────────────

    def add_progress(self, line: ProgressLine) -> None:
        """Appends a line to progress.jsonl. Beyond PROGRESS_BYTES, drops every second step in the
        older half of the file."""
        json_lines.append(self.progress, progress_lines.to_json(line))
        json_lines.thin(self.progress, PROGRESS_BYTES, STEP_BEGINS)

    def history(self) -> History:
        """Reads the run's steps and evaluations, except for steps lost in a restart. 10,000 steps
        of 150 metrics (43 MB) take about 4.5 s and 230 MB of memory; `last_steps` and `evaluations`
        read less."""
        lines = json_lines.read(self.progress, progress_lines.from_json)
        return progress_lines.history_of(lines.values, lines.damaged, cut=lines.cut)

    def last_steps(self, count: int) -> list[StepLine]:
        """Reads the last `count` steps, as `history` does, but from the end of the file. Leaves out
        damaged lines, which `history` counts."""
        ends = json_lines.newest_first(self.progress)
        parsed = (json_lines.parse_lines([line], progress_lines.from_json).values for line in ends)
        return progress_lines.last_steps((line for values in parsed for line in values), count)

    def evaluations(self) -> list[EvalLine]:
        """Reads each version's last evaluation, as `history` does, but reads no steps. Leaves out
        damaged lines, which `history` counts."""
        ends = json_lines.newest_first(self.progress)
        lines = json_lines.parse_lines(
            [line for line in ends if line.startswith(EVAL_BEGINS)], progress_lines.from_json
        )
        return progress_lines.history_of(reversed(lines.values)).evaluations

    def add_machine(self, step: int, facts: Mapping[str, str]) -> None:
        """Records the machine of a learner that starts at version `step`, unless its facts are
        those of the previous learner's machine. Logs a warning if the file cannot be written."""
        machines = self.machines()
        if machines and machines[-1].step <= step and machines[-1].facts == facts:
            return
        try:
            json_lines.append(self.machines_file, asdict(Machine(step, facts)))
        except OSError as error:
            log.warning("could not record what the learner computes on: %s", error)

    def machines(self) -> list[Machine]:
        """Reads the machines that computed the run's steps, in the order of the steps."""
        found = list[Machine]()
        read = partial(msgspec.convert, type=Machine)
        for each in json_lines.read(self.machines_file, read).values:
            while found and found[-1].step >= each.step:  # the steps after it were made again
                found.pop()
            found.append(each)
        return found

    def machine_of(self, step: int) -> Mapping[str, str]:
        """Returns the facts of the machine that computed step `step`; {} if they are not
        recorded."""
        return next((each.facts for each in reversed(self.machines()) if each.step < step), {})

    # ── its processes ───────────────────────────────────────────────────────────────────

    def report(self, process: str, status: ProcessStatus) -> None:
        """If the folder holds a run, writes what a process reports. Logs a warning if the file
        cannot be written."""
        if not self.logs.is_dir():
            return
        try:
            self.processes.mkdir(exist_ok=True)
            write_json(self._process_file(process), asdict(status))
        except OSError as error:
            log.warning(
                "could not report to the launcher that %s is %s: %s", process, status.state, error
            )

    def status_of(self, process: str) -> ProcessStatus | None:
        """Reads what a process reported since its last start; None if it has reported nothing."""
        remedy = "delete it; the process writes it at its next start"
        return read_json(self._process_file(process), remedy, ProcessStatus)

    def forget(self, process: str) -> None:
        """Removes what an earlier process of this name reported."""
        self._process_file(process).unlink(missing_ok=True)

    def _process_file(self, process: str) -> Path:
        return self.processes / f"{process.replace('/', '_')}.json"

    # ── health of the learner ───────────────────────────────────────────────────────────

    def write_heartbeat(self, doing: str) -> None:
        """Writes what the learner is doing. If the disk is full, renews the file's modification
        time and raises OSError."""
        self.heartbeat_file.write_text(doing, encoding="utf-8")

    def heartbeat(self) -> Heartbeat | None:
        """Reads the learner's last heartbeat; None if it has not written one."""
        try:
            doing = self.heartbeat_file.read_text(encoding="utf-8", errors="replace")
            return Heartbeat(doing, self.heartbeat_file.stat().st_mtime)
        except FileNotFoundError:
            return None

    def add_hang(self, doing: str, ended_by: str) -> None:
        json_lines.append(self.hangs_file, asdict(Hang(doing, ended_by)))

    def hangs(self) -> list[Hang]:
        return json_lines.read(self.hangs_file, lambda line: msgspec.convert(line, Hang)).values

    def add_skipped(self, step: SkippedStep) -> None:
        json_lines.append(self.skipped_file, asdict(step))

    def keep_token_budget(self, budget: int) -> None:
        """Records a lowered token budget; several ranks may do so at the same time."""
        write_json(self.path / "limits.json", asdict(LoweredLimits(budget)))

    def token_budget(self, configured: int) -> int:
        """Returns the token budget to start with: `configured`, or a lower budget that was recorded
        earlier."""
        remedy = f"delete the file to begin with the configured {configured}"
        path = self.path / "limits.json"
        limits = read_json(path, remedy, LoweredLimits)
        return configured if limits is None else min(configured, limits.tokens_per_micro_batch)

    # ── the bill ────────────────────────────────────────────────────────────────────────

    def bill(self) -> dict[str, Usage]:
        """Reads what each process has used since the run began; {} before the first step."""
        remedy = "delete it; the bill then begins again at 0"
        return read_json(self.path / "bill.json", remedy, dict[str, Usage]) or {}

    def write_bill(self, processes: Mapping[str, Usage]) -> None:
        write_json(self.path / "bill.json", {name: asdict(u) for name, u in processes.items()})

    # ── outputs ─────────────────────────────────────────────────────────────────────────

    def best_evaluation(self) -> EvalLine | None:
        """Reads the evaluation of the weights in `best/`, if there is one."""
        remedy = "delete it, and the next evaluation is the best one"
        return read_json(self.path / BEST / EVALUATION, remedy, EvalLine)

    def versions(self) -> dict[str, str]:
        """Reads the versions at the run's last start, keyed by package; {} if they are unknown."""
        remedy = "delete it; nothing else depends on it"
        return read_json(self.path / "versions.json", remedy, dict[str, str]) or {}

    def write_versions(self, versions: Mapping[str, str]) -> None:
        write_json(self.path / "versions.json", versions)

    def data_sets(self) -> dict[str, str]:
        """Reads the commit of each data set of the hub that the run reads, keyed by name; {} if
        it reads none."""
        remedy = "delete it; a resume then takes the rows that the cache has"
        return read_json(self.path / "data-sets.json", remedy, dict[str, str]) or {}

    def write_data_sets(self, commits: Mapping[str, str]) -> None:
        write_json(self.path / "data-sets.json", commits)

    def service_id(self, service: str) -> str:
        """Reads the id of this run at a service such as wandb; "" if the run has none."""
        path = self.path / f".{service}-id"
        values = read_json(path, "delete it to begin new curves", dict[str, str])
        return values["id"] if values else ""

    def keep_service_id(self, service: str, own: str) -> str:
        """Stores `own`, the id of this run at a service such as wandb. Returns `own`."""
        write_json(self.path / f".{service}-id", {"id": own})
        return own


def write_evaluation(weights: Path, evaluation: EvalLine) -> None:
    """Writes an evaluation into the folder of the evaluated weights."""
    write_json(weights / EVALUATION, asdict(evaluation))


def _load(path: Path) -> RunConfig:
    """Reads the settings in a file. Raises a UserError that names the file."""
    try:
        if not path.stat().st_size:
            raise UserError("is empty, perhaps after a power loss; restore it from a copy")
        return configuration.load(path)
    except UserError as error:
        raise error if path.name in str(error) else UserError(f"{path}: {error}") from None


def _step_of(path: Path) -> int:
    """Returns the step number at the end of a settings file's name."""
    try:
        return int(path.stem.rpartition("-")[2])
    except ValueError:
        raise UserError(
            f"{path}: its name does not end in a step number; rename or remove it"
        ) from None


def run_folder(name: str | None) -> Path:
    """Returns a run's folder. A bare name is a folder in runs/, and a name with a slash is a path.
    For None, the current time is the name. Raises UserError for a bad name."""
    if name is not None and not name.strip():
        raise UserError("--run: the name is empty; give one, or leave --run out")
    name = name or time.strftime("%Y%m%d-%H%M%S")
    try:
        plain(name, "the name")
    except ValueError as error:
        raise UserError(f"--run: {error}") from None
    return user_path(name) if "/" in name else Path("runs") / name


def run_name(folder: Path) -> str:
    """Returns what to type after --run for a run's folder, so that `run_folder` returns it."""
    if folder.parent == Path("runs"):
        return folder.name
    return str(folder) if "/" in str(folder) else f"./{folder}"
