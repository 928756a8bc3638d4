"""Groups as actors record them, small models, and learner processes on a run folder."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from msgspec.structs import replace

from buffer import BufferClient, Lease
from launch.backends.process_commands import free_port, launcher_arguments
from learner.warmup import tiny_policy
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import Row
from r3l.records import Group, GroupPlan, Trajectory
from r3l.run.config import dump, load
from r3l.training.step_loss import StepResult
from tests.forks import Forked
from tests.processes import command_line
from tests.r3l.training.fakes import explore_group

REWARDS = [
    ((0.0, 1.0), (1.0, None), 2),
    ((0.0, 0.0), (1.0, 0.0), 1),
    ((1.0, 0.0), (None, 0.5), 3),
]


def recorded_group(group_id: str, version: int, vocab: int = 200) -> Group:
    """One group as an actor at `version` would have explored it."""
    number = int(group_id[1:])
    base, retry, pivot = REWARDS[number % len(REWARDS)]
    group = explore_group(base, retry, pivot=pivot, seed=number, group_id=group_id, vocab=vocab)
    return at_version(group, version)


def changed(group: Group, change: Callable[[Trajectory], Trajectory]) -> Group:
    """The group with other attempts."""
    results = (
        replace(result, trajectory=change(result.trajectory)) if result.trajectory else result
        for result in group.results
    )
    return replace(group, results=tuple(results))


def at_version(group: Group, version: int) -> Group:
    """The group as if this version had sampled it."""

    def sampled(attempt: Trajectory) -> Trajectory:
        versions = np.full(attempt.num_steps, version, dtype=np.int32)
        return replace(attempt, step_versions=versions, step_newest_versions=versions)

    return changed(group, sampled)


def rewarded(group: Group, reward: float) -> Group:
    """The group as if all its attempts had earned this."""
    return changed(group, lambda attempt: replace(attempt, reward=reward))


PLAN = GroupPlan(4)


class Recording:
    """An actor that plays recorded groups at the newest version it has seen, in a thread.

    `played`: the group that it puts for (group id, version), by default `recorded_group`; of an
    evaluation's group the one slot. `before` is called with every lease before it is played.
    """

    def __init__(
        self,
        endpoint: str,
        played: Callable[[str, int], Group] = recorded_group,
        before: Callable[[Lease], None] = lambda lease: None,
        timeout_s: float = 60.0,
        plan: GroupPlan = PLAN,
    ) -> None:
        self.endpoint, self.played, self.before, self.plan = endpoint, played, before, plan
        self.version, self.timeout_s = 0, timeout_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def __enter__(self) -> "Recording":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=120)

    def _play(self) -> None:
        with BufferClient(self.endpoint, name="recording", timeout_s=self.timeout_s) as client:
            while not self._end.is_set():
                self.version = max(self.version, client.stats().learner_version)
                lease = client.lease("recording", self.version, self.plan)
                if not isinstance(lease, Lease):
                    time.sleep(0.05)
                    continue
                self.before(lease)
                group = self.played(lease.group_id, self.version)
                results = [r for r in group.results if r.slot < lease.plan.slots]
                client.put(lease.group_id, "recording", [*results, *group.reflections])


def tiny_model(folder: Path, hidden: int = 64, head: int = 32) -> Path:
    """A random model of some 100 000 parameters with a tokenizer and a chat template."""
    tokenizer = tiny_policy.build_tokenizer(["use brush on tin"])
    model = tiny_policy.build_model(tokenizer, seed=0, hidden=hidden, layers=2, head=head)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    torch.set_num_threads(1)
    return folder


def measured(result: StepResult) -> dict[str, float]:
    """A step as plain numbers, names without their prefix."""
    metrics = {tag.removeprefix("learner/"): value for tag, value in result.metrics.items()}
    return metrics | {"applied": result.applied, "out_of_memory": result.out_of_memory}


def rows_of_rank_0(trainer: Any, algorithm: Algorithm, batch: Batch) -> list[Row]:
    """The rows of a batch, with the answers of its queries. Other ranks than 0 have none."""
    batch = trainer.answer(batch, algorithm.queries(batch))
    return [] if getattr(trainer, "rank", 0) else algorithm.rows(batch)


ROOT = Path(__file__).parent.parent.parent
LAUNCHER = "deepspeed.launcher.launch"
IMPORTED = (
    "learner.cli",
    "learner.checkpoint",
    "learner.loop",
    "learner.publishing.publisher",
    "learner.metrics.reporter",
    "transformers.models.qwen2.modeling_qwen2",
    LAUNCHER,
)
"""What a learner imports, or the launcher of several ranks, from which each rank starts anew."""

SETTINGS = (
    "learner.steps=9",
    "learner.lr=1e-3",
    "learner.groups_per_step=3",
    "learner.checkpoint_every=3",
    "learner.schedule=cosine",
    "learner.warmup_steps=2",
    "algorithm.group_size=4",
    "buffer.max_staleness=0",
    "env.train_tasks=64",
    "eval.tasks=0",
)


class Learning:
    """A learner process, or several ranks of it, on a run folder."""

    def __init__(
        self,
        run: Path,
        endpoint: str,
        ranks: int = 1,
        *,
        resume: bool = False,
        module: str = "learner.cli",
        threads: int = 1,
    ) -> None:
        self.run, self.module, self.count = run, module, ranks
        arguments = ["train", "--config", str(run / "config.yaml"), "--run", str(run)]
        arguments += ["--buffer", endpoint, "--weights", "tcp://127.0.0.1:0"]
        arguments += ["--resume"] * resume
        if ranks > 1:
            arguments = [*launcher_arguments(range(ranks), free_port()), module, *arguments]
            module = LAUNCHER
        self.process: Forked | subprocess.Popen[bytes]
        with (run / "learner.log").open("ab") as log:
            if threads == 1:
                self.process = Forked(
                    module,
                    arguments,
                    imported=IMPORTED,
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                    start_new_session=True,
                )
            else:  # OpenMP reads the number of its threads when torch is imported
                self.process = subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                    start_new_session=True,
                )

    def wait(self, seconds: float = 200) -> int:
        try:
            return self.process.wait(timeout=seconds)
        finally:
            self.kill()

    def wait_for_step(self, step: int) -> None:
        self.wait_until(lambda: bool(made := steps_of(self.run)) and made[-1]["step"] >= step)

    def wait_for_lines(self, text: str, count: int) -> None:
        """Waits until the log holds `count` more times `text` than now."""
        log = self.run / "learner.log"
        first = log.read_text().count(text)
        self.wait_until(lambda: log.read_text().count(text) >= first + count)

    def wait_until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 200
        while not true():
            assert self.process.poll() is None and time.monotonic() < end, self.log()
            time.sleep(0.02)

    def ranks(self) -> list[psutil.Process]:
        found = [psutil.Process(self.process.pid)]
        if self.count == 1:
            return found
        found += found[0].children(recursive=True)
        return [p for p in found if self.module in command_line(p) and not p.children()]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        return (self.run / "learner.log").read_text()[-3000:]


def steps_of(run: Path) -> list[dict[str, float]]:
    path = run / "progress.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["kind"] == "step"]


def prepare(run: Path, model: Path, *more: str) -> None:
    run.mkdir(parents=True)
    config = load(None, [f"model={model}", *SETTINGS, *more])
    (run / "config.yaml").write_text(dump(config))


def buffer_options() -> list[str]:
    return ["buffer.max_staleness=0", "learner.groups_per_step=3", "buffer.map_gib=0.25"]
