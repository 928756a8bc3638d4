"""Many clients at once: 64 simulated actors and 4 learners on one service over loopback.

Actors lease, put results slot by slot or all at once, report failures, lose leases and come
back; learners draw, commit and sometimes die with a batch. Every error is fatal but those that
are part of the game (LeaseLost, Conflict). Afterwards the store is verified: every acknowledged
result is there and every group was trained once. Prints the metrics as JSON.
"""

import asyncio
import itertools
import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.buffer.service import Service, attempt, quantile
from buffer import AsyncBufferClient, Lease
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from r3l.errors import Conflict, LeaseLost
from r3l.records import GroupPlan, Task

ACTORS, PROCESSES, LEARNERS = 64, 2, 4
GROUPS_PER_STEP, SLOTS, TOKENS = 8, 8, 1024
PLAN = GroupPlan(SLOTS)


class Fleet:
    """Some of the actors, in one process: what they did and how long they waited."""

    def __init__(self, endpoint: str, until: float, version: Any) -> None:
        self.endpoint, self.until, self.version = endpoint, until, version
        self.counts: Counter[str] = Counter()
        self.put_ms: list[float] = []
        self.acked: list[tuple[str, int]] = []

    async def actor(self, name: str) -> None:
        """One actor's life."""
        chance = random.Random(name)
        async with AsyncBufferClient(self.endpoint, name=name, timeout_s=60) as client:
            while time.time() < self.until:
                lease = await client.lease(name, self.version.value, PLAN, {"tokens_per_s": 1.0})
                if not isinstance(lease, Lease):
                    self.counts["waits"] += 1
                    await asyncio.sleep(lease.retry_s * chance.random())
                    continue
                try:
                    await self._explore(client, name, lease, chance)
                except (LeaseLost, Conflict):  # another one has the group by now
                    self.counts["leases_lost"] += 1

    async def _explore(
        self, client: AsyncBufferClient, name: str, lease: Lease, chance: random.Random
    ) -> None:
        have = {result.slot for result in lease.accepted}
        missing = [slot for slot in range(lease.plan.slots) if slot not in have]
        if chance.random() < 0.02:  # it dies with what it holds
            await client.release([lease.group_id], name)
            return
        for some in [missing] if chance.random() < 0.5 else [[slot] for slot in missing]:
            results = [attempt(slot, self.version.value, TOKENS) for slot in some]
            began = time.perf_counter()
            await client.put(lease.group_id, name, results)
            self.put_ms.append((time.perf_counter() - began) * 1e3)
            self.acked += [(lease.group_id, slot) for slot in some]
            if chance.random() < 0.1:
                await client.renew([lease.group_id], name)


def actors(
    endpoint: str, seconds: float, names: list[str], version: Any, ready: Any, out: Any
) -> None:
    """A process of actors; begins when all are `ready`."""
    ready.wait()
    fleet = Fleet(endpoint, time.time() + seconds, version)

    async def all_of_them() -> None:
        await asyncio.gather(*(fleet.actor(name) for name in names))

    asyncio.run(all_of_them())
    out.put((fleet.counts, fleet.put_ms, fleet.acked))


async def learner(
    endpoint: str, until: float, number: int, steps: Any, version: Any, draw_ms: list[float]
) -> int:
    """One learner: draws, commits, and now and then dies with its batch; returns its steps."""
    chance, name, trained = random.Random(number), f"learner-{number}", 0
    async with AsyncBufferClient(endpoint, name=name, timeout_s=60) as client:
        while time.time() < until:
            began = time.perf_counter()
            draw = await client.draw(GROUPS_PER_STEP, version.value, consumer=name, wait_s=1.0)
            if draw is None:
                continue
            draw_ms.append((time.perf_counter() - began) * 1e3)
            if chance.random() < 0.05:
                await client.release_draws(name)
                continue
            step = next(steps)
            await client.commit(draw.draw_id, step, step)
            version.value = max(version.value, step)
            trained += 1
    return trained


@click.command()
@click.option("--minutes", default=3.0, show_default=True)
def load(minutes: float) -> None:
    """64 actors and 4 learners on one service; then every result is checked."""
    with tempfile.TemporaryDirectory(prefix="r3l-load-") as folder:
        settings = (
            f"learner.groups_per_step={GROUPS_PER_STEP}",
            "buffer.max_staleness=12",
            "buffer.lease_s=30",
        )
        with Service(Path(folder) / "store", *settings) as service:
            metrics, acked = _run(service, minutes * 60)
        store = Store(Path(folder) / "store", read_only=True)
        problems = verify(store)
        kept = {
            (row["group"], result.slot)
            for row in store_reads.rows(store)
            for result in store_reads.group(store, row["group"]).results
        }
        store.close()
    lost = [put for put in acked if put not in kept]
    print(json.dumps(metrics | {"lost": len(lost), "problems": problems}, indent=2))
    assert not lost and not problems and not metrics["refused_other"]


def _run(service: Service, seconds: float) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    spawn = multiprocessing.get_context("spawn")
    version, results = spawn.Value("q", 0, lock=False), spawn.Queue()
    ready = spawn.Barrier(PROCESSES + 1)
    service.client.add_tasks([Task(f"t{i}", "simulated", i) for i in range(500)])
    names = [f"actor-{i}" for i in range(ACTORS)]
    parts = [names[i::PROCESSES] for i in range(PROCESSES)]
    fleets = [
        spawn.Process(
            target=actors, args=(service.endpoint, seconds, part, version, ready, results)
        )
        for part in parts
    ]
    for fleet in fleets:
        fleet.start()
    ready.wait()
    until = time.time() + seconds
    draw_ms: list[float] = []

    async def learners() -> list[int]:
        steps = itertools.count(1)
        each = (
            learner(service.endpoint, until, i, steps, version, draw_ms) for i in range(LEARNERS)
        )
        return list(await asyncio.gather(*each))

    trained = asyncio.run(learners())
    done = [results.get(timeout=120) for _ in fleets]
    for fleet in fleets:
        fleet.join()
    counts: Counter[str] = sum((part[0] for part in done), Counter())
    put_ms = [ms for part in done for ms in part[1]]
    stats = service.client.stats()
    refused = {name: n for name, n in stats.refused.items() if name != "LeaseLost"}
    metrics = {
        "seconds": seconds,
        "load_average": psutil.getloadavg()[0],
        "puts": stats.puts,
        "groups_made": stats.made,
        "groups_trained": stats.drawn_groups and stats.trained,
        "steps_by_learner": trained,
        "put_ms_p50_p99": (quantile(put_ms, 0.5), quantile(put_ms, 0.99)),
        "draw_ms_p50_p99": (quantile(draw_ms, 0.5), quantile(draw_ms, 0.99)),
        "actors": dict(counts),
        "leases_expired": stats.leases_expired,
        "drops": stats.drops,
        "undelivered": stats.undelivered,
        "refused": stats.refused,
        "refused_other": refused,
        "service_rss_mib": service.process.memory_info().rss >> 20,
        "exit_codes": [fleet.exitcode for fleet in fleets],
    }
    return metrics, [put for part in done for put in part[2]]
