"""The speed and memory of a service on a small and on a large store.

    fill a small and a large store in process, with the service's own operations, as a run would:
    leased, put, drawn, committed ─► serve both ─► puts and draws in turn, one store after the
    other ─► medians and their ratio, start-up time, resident memory

A group has 8 trajectories. Latencies are those of one client over loopback TCP; a put is on disk
when it returns.
"""

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import psutil

from buffer import BufferClient, Lease
from buffer.groups import draws, leases, results
from buffer.groups.tasks import add_tasks
from buffer.groups.unit_of_work import UnitOfWork
from buffer.indexes.index import Index
from buffer.server.service import rules_of
from buffer.storage.store import Store
from buffer.wire import operations
from r3l import codec
from r3l.records import GroupPlan, SlotResult, Task, Trajectory, done
from r3l.run import config as configuration

PLAN = GroupPlan(8)
PER_STEP = 12
AT_ONCE = 20  # steps in one transaction while filling
SETTINGS = (
    "buffer.lease_s=86400",
    "buffer.max_staleness=1000",
    f"learner.groups_per_step={PER_STEP}",
)
RULES = rules_of(configuration.load(None, SETTINGS))


@click.command()
@click.option("--small", default=1000, show_default=True, help="groups in the small store")
@click.option("--large", default=200_000, show_default=True, help="groups in the large store")
@click.option("--tokens", default=128, show_default=True, help="tokens of a trajectory")
@click.option("--rounds", default=60, show_default=True, help="batches put and drawn per store")
@click.option("--folder", type=click.Path(path_type=Path), help="where; default a temporary one")
def scale(small: int, large: int, tokens: int, rounds: int, folder: Path | None) -> None:
    """A store of a few groups and one of many: puts, draws, memory."""
    place = Path(tempfile.mkdtemp(prefix="buffer-scale-", dir=folder))
    try:
        results = [attempt(slot, tokens) for slot in range(PLAN.slots)]
        sides = [Side(place / str(groups), groups, results) for groups in (small, large)]
        for number in range(rounds):
            for side in sides if number % 2 else reversed(sides):
                side.turn()
        for side in sides:
            side.end()
        _report(sides, tokens)
    finally:
        shutil.rmtree(place)


class Side:
    """One store and its service; `puts` and `draws`: milliseconds of each."""

    def __init__(self, folder: Path, groups: int, results: list[SlotResult]) -> None:
        self.groups, self.results = groups, results
        began = time.monotonic()
        self.version = _fill(folder, groups, results)
        self.fill_s = time.monotonic() - began
        self.disk_bytes = (folder / "data.mdb").stat().st_blocks * 512
        began = time.monotonic()
        self.process = subprocess.Popen(_serve(folder), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.client = BufferClient(self.process.stdout.readline().split()[-1], timeout_s=120)
        self.start_s = time.monotonic() - began
        self.puts: list[float] = []
        self.draws: list[float] = []

    def turn(self) -> None:
        """A batch of puts, a draw and its commit."""
        for _ in range(PER_STEP):
            lease = self.client.lease("bench", self.version, PLAN)
            assert isinstance(lease, Lease), lease
            began = time.perf_counter()
            self.client.put(lease.group_id, "bench", self.results)
            self.puts.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        draw = self.client.draw(PER_STEP, 0)  # all were sampled by version 0
        self.draws.append((time.perf_counter() - began) * 1e3)
        assert draw is not None
        self.version += 1
        self.client.commit(draw.draw_id, self.version, self.version)

    def end(self) -> None:
        """Read the service's memory and stop it."""
        memory = psutil.Process(self.process.pid).memory_full_info()
        self.own_bytes = memory.rss - memory.shared  # the map's pages are the page cache's
        self.client.close()
        self.process.terminate()
        self.process.wait()


def _serve(folder: Path) -> list[str]:
    return [
        sys.executable, "-m", "buffer.cli", "serve", "--store", str(folder),
        "--bind", "tcp://127.0.0.1:0", *SETTINGS,
    ]  # fmt: skip


def _fill(folder: Path, groups: int, results: list[SlotResult]) -> int:
    """Make a store of trained groups; returns the learner's version."""
    store = Store(folder)
    index, steps = Index.load(store, RULES.buffer), -(-groups // PER_STEP)
    encoded = tuple(msgspec.Raw(codec.encode(result)) for result in results)
    with store.write() as txn:
        work = UnitOfWork(txn, index, RULES, time.time())
        tasks = tuple(Task(f"t{i}", "workshop", i) for i in range(4096))
        add_tasks(work, operations.AddTasks(tasks, "train", "", 0))
        work.finish()
    for first in range(0, steps, AT_ONCE):
        with store.write() as txn:
            work = UnitOfWork(txn, index, RULES, time.time())
            for step in range(first, min(first + AT_ONCE, steps)):
                _train(work, step, encoded)
            work.finish()
    store.close()
    return steps


def _train(work: UnitOfWork, step: int, encoded: tuple[msgspec.Raw, ...]) -> None:
    for number in range(PER_STEP):
        lease = leases.lease(
            work, operations.AcquireLease("bench", step, PLAN, {}), f"{step}.{number}"
        )
        assert isinstance(lease, Lease), lease
        results.put(work, operations.Put(lease.group_id, "bench", None, encoded))
    draw = draws.draw(work, operations.DrawGroups(PER_STEP, 0, "learner"), f"d{step}")
    assert draw is not None
    draws.commit(work, operations.Commit(draw.draw_id, step + 1, step + 1))


def attempt(slot: int, tokens: int) -> SlotResult:
    """Makes a finished attempt of one turn, half of whose tokens are sampled."""
    mask = np.arange(tokens) >= tokens // 2
    trajectory = Trajectory(
        slot=slot,
        token_ids=np.arange(tokens, dtype=np.int32),
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        step_spans=np.array([[tokens // 2, tokens]], dtype=np.int32),
        step_versions=np.zeros(1, dtype=np.int32),
        step_newest_versions=np.zeros(1, dtype=np.int32),
        step_seconds=np.zeros(1, dtype=np.float32),
        reward=float(slot % 2),
        system="",
        observations=("before", "after"),
        actions=("act",),
    )
    return done(trajectory)


def _report(sides: list[Side], tokens: int) -> None:
    small, large = sides
    click.echo(f"8 x {tokens} tokens a group, {PER_STEP} groups a draw, {len(small.draws)} rounds")
    rows: list[tuple[str, Any, Any]] = [
        ("groups", small.groups, large.groups),
        ("trajectories", small.groups * PLAN.slots, large.groups * PLAN.slots),
        ("file, MB", small.disk_bytes / 1e6, large.disk_bytes / 1e6),
        ("put, median ms", statistics.median(small.puts), statistics.median(large.puts)),
        ("draw, median ms", statistics.median(small.draws), statistics.median(large.draws)),
        ("start, s", small.start_s, large.start_s),
        ("own memory, MB", small.own_bytes / 1e6, large.own_bytes / 1e6),
        ("filled in, s", small.fill_s, large.fill_s),
    ]
    for name, few, many in rows:
        ratio = f"{many / few:8.2f} x" if "ms" in name else ""
        click.echo(f"{name:18}{few:12.2f}{many:14.2f}{ratio}")
