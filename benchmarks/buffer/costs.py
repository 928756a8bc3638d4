"""CPU time of single operations as the number of groups in flight grows, in process.

lease so many groups, or complete them ─► each operation alone in a transaction ─► median of the
thread's CPU time, without the wait of the commit
"""

import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.buffer.scale import attempt
from buffer.groups import draws, leases, results
from buffer.groups.learner_version import set_version
from buffer.groups.tasks import add_tasks, next_in_cycle
from buffer.groups.unit_of_work import UnitOfWork
from buffer.indexes.index import Index
from buffer.sampling.samplers import SAMPLERS
from buffer.server import lookups
from buffer.server.fair_queue import FairQueue
from buffer.server.service import rules_of
from buffer.server.writer import Results, Writer
from buffer.storage.store import Store
from buffer.wire import operations
from buffer.wire.messages import ReceivedRequest
from buffer.wire.operations import OPERATIONS
from r3l import codec
from r3l.records import GroupPlan, Task
from r3l.run import config as configuration

PLAN = GroupPlan(2)
TASKS = 1000
AT_ONCE = 500  # groups in one transaction while filling
TIMES = 15
LARGE_TOKENS = 75_000  # of a result of 0.6 MB
MOST_QUEUED = 250  # large puts, somewhat more than the service lets wait
FEWEST = 600  # complete groups, enough for all draws of 8
NEWEST = 2_000_000  # the learner's version; an actor at version 0 waits for weights
SETTINGS = (
    "learner.groups_per_step=512",
    "buffer.max_staleness=1000000",
    "buffer.lease_s=100000",
)
Work = Callable[[UnitOfWork], Any]


@click.command()
@click.option("--groups", default="0,8000,32000,100000", show_default=True, help="in flight")
@click.option("--folder", type=click.Path(path_type=Path), help="where; default a temporary one")
@click.option(
    "--kind", "only", type=click.Choice(["unfinished", "complete", "queued"]), help="default: all"
)
def costs(groups: str, folder: Path | None, only: str | None) -> None:
    """CPU time of leases, waits, draws and queries by the number of groups in flight."""
    numbers = sorted(map(int, groups.split(",")))
    kinds = {"unfinished": _unfinished, "complete": _complete, "queued": _queued}
    for kind, measure in kinds.items():
        if only not in (None, kind):
            continue
        if kind == "queued":
            numbers = [number for number in numbers if number <= MOST_QUEUED] or [MOST_QUEUED]
        place = Path(tempfile.mkdtemp(prefix="buffer-costs-", dir=folder))
        bench = Bench(place)
        try:
            for number in numbers:
                found = measure(bench, number)
                words = ", ".join(f"{name} {ms:.3f}" for name, ms in found.items())
                click.echo(f"{number} {kind} groups, CPU ms: {words}")
        finally:
            bench.store.close()
            shutil.rmtree(place)


class Bench:
    """A store with operations in process. `made`: the groups that it was filled with."""

    def __init__(self, folder: Path) -> None:
        self.rules = rules_of(configuration.load(None, SETTINGS))
        self.store, self.number, self.made = Store(folder), 0, list[str]()
        self.tag = ""  # of the groups that it makes
        self.index = Index.load(self.store, self.rules.buffer)
        self.raws = tuple(msgspec.Raw(codec.encode(attempt(slot, 32))) for slot in (0, 1))
        tasks = tuple(Task(f"t{i}", "w", i) for i in range(TASKS))
        self.run(lambda work: add_tasks(work, operations.AddTasks(tasks)))

    def run(self, work: Work) -> float:
        """Does one operation in a transaction. Returns the thread's CPU seconds."""
        began = time.thread_time()
        with self.store.write() as txn:
            unit = UnitOfWork(txn, self.index, self.rules, time.time())
            work(unit)
            unit.finish()
        return time.thread_time() - began

    def median_ms(self, make: Callable[[], Work]) -> float:
        return statistics.median(self.run(make()) for _ in range(TIMES)) * 1e3

    def fill(self, count: int, *, finish: bool = False) -> None:
        """Leases groups until there are so many; with `finish`, completes them."""
        while len(self.made) < count:
            self.run(lambda work: self._some(work, min(AT_ONCE, count - len(self.made)), finish))

    def _some(self, work: UnitOfWork, count: int, finish: bool) -> None:
        for _ in range(count):
            row = next_in_cycle(work, PLAN)
            held = row.with_changes(
                actor="a", rid=self.rid(), deadline=work.now + 1e5, tag=self.tag
            )
            work.save(held, "lease")
            if self.tag:
                work.txn.add_tag(held)
            if finish:
                results.put(work, self.put(row.group_id))
            self.made.append(row.group_id)

    def rid(self) -> str:
        self.number += 1
        return f"r{self.number}"

    def put(self, group_id: str) -> operations.Put:
        return operations.Put(group_id, "a", None, self.raws)

    def lease(self, version: int) -> Work:
        args, rid = operations.AcquireLease("a", version, PLAN, {}), self.rid()
        return lambda work: leases.lease(work, args, rid)

    def draw(self) -> Work:
        args, rid = operations.DrawGroups(8, 0, "learner"), self.rid()
        return lambda work: draws.draw(work, args, rid)

    def read_ms(self, query: operations.QueryGroups) -> float:
        """CPU milliseconds of the first part of a query."""
        times = []
        for _ in range(TIMES):
            began = time.thread_time()
            with self.store.read() as txn:
                lookups.query(txn, query)
            times.append(time.thread_time() - began)
        return statistics.median(times) * 1e3


def _unfinished(bench: Bench, number: int) -> dict[str, float]:
    bench.run(lambda work: set_version(work, operations.SetVersion(NEWEST)))
    bench.fill(number)
    held = tuple(bench.made[:8])
    renew = operations.Renew(held, "a", {})
    return {
        "lease": bench.median_ms(lambda: bench.lease(NEWEST)),
        "wait": bench.median_ms(lambda: bench.lease(0)),
        "renew of 8": bench.median_ms(lambda: lambda work: leases.renew(work, renew)),
        "tick": bench.median_ms(lambda: leases.expire_overdue),
    }


def _complete(bench: Bench, number: int) -> dict[str, float]:
    bench.fill(max(number, FEWEST), finish=True)
    draw = {}
    for sampler in SAMPLERS:
        bench.rules = rules_of(configuration.load(None, (*SETTINGS, f"buffer.sampler={sampler}")))
        draw[f"draw of 8, {sampler}"] = bench.median_ms(bench.draw)
    return draw | {
        "query without a match": bench.read_ms(operations.QueryGroups(state="filling", limit=10)),
        "newest 10": bench.read_ms(operations.QueryGroups(limit=10)),
    }


def _queued(bench: Bench, number: int) -> dict[str, float]:
    """A heartbeat that comes while the first transaction of so many large puts is under way, each
    of another client: CPU time until its reply."""
    raw = msgspec.Raw(codec.encode(attempt(0, LARGE_TOKENS)))
    bench.run(lambda work: set_version(work, operations.SetVersion(NEWEST)))
    began = len(bench.made)
    bench.fill(began + number + 1)
    *groups, last = bench.made[began:]
    puts = [
        _request(b"%d" % at, "put", operations.Put(name, "a", None, (raw,)), len(raw))
        for at, name in enumerate(groups)
    ]
    renew = _request(b"renews", "renew", operations.Renew((last,), "a", {}), 100)
    queue, answered = _Later(renew), list[float]()
    queue.put(puts)
    queue.end()
    writer = Writer(bench.store, bench.rules, queue, Counter())
    start = time.thread_time()

    def sent(results: Results) -> None:
        if any(request is renew for request, _ in results):
            answered.append(time.thread_time() - start)

    writer.run(sent)
    bench.index = writer.index
    took = time.thread_time() - start
    return {
        "until the heartbeat's reply": answered[0] * 1e3,
        "until all have theirs": took * 1e3,
        "a put of 0.6 MB": took * 1e3 / max(1, number),
    }


class _Later(FairQueue):
    """A queue to which one more request comes once the writer has taken the first ones."""

    def __init__(self, later: ReceivedRequest) -> None:
        super().__init__()
        self._later: ReceivedRequest | None = later

    def take(self, until: float, most: int, most_bytes: int) -> tuple[list[ReceivedRequest], bool]:
        taken, more = super().take(until, most, most_bytes)
        if self._later is None:
            return taken, more
        self.put([self._later])
        self._later = None
        return taken, True


def _request(client: bytes, name: str, arguments: Any, nbytes: int) -> ReceivedRequest:
    return ReceivedRequest(client, OPERATIONS[name], f"{client!r}", arguments, nbytes)
