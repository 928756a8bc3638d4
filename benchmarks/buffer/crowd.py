"""A storm: so many clients put large results as fast as they can, beside heartbeats and leases.

Each client has a connection of its own. It leases a group, puts one result after another, and sends
a heartbeat every HEARTBEAT_S seconds. A wait that is under way when the time is over counts with
what it took until then. Prints a line for each number of clients.
"""

import asyncio
import logging
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import psutil
import zmq

from benchmarks.buffer.service import Service, attempt, quantile
from buffer import AsyncBufferClient, Lease
from buffer.client.call_results import Call
from buffer.wire import operations
from buffer.wire.access import allow_files
from r3l import codec
from r3l.errors import BufferUnavailable
from r3l.records import GroupPlan, Task

SLOTS, HEARTBEAT_S, TOKEN_BYTES = 4, 2.0, 8
PLAN = GroupPlan(SLOTS)
SETTINGS = ("learner.groups_per_step=512", "buffer.max_staleness=1000000")
FILES = 16_384
T = TypeVar("T")
Times = dict[str, list[float]]


class Crowd:
    """Some of the clients, in one process. `ms`: how long each kind of request took. `served`: the
    clients that got a reply. `refused`: why others got none."""

    def __init__(self, endpoint: str, nbytes: int, seconds: float) -> None:
        self.endpoint, self.seconds = endpoint, seconds
        results = [attempt(slot, 0, max(32, nbytes // TOKEN_BYTES)) for slot in range(SLOTS)]
        self.raws = [msgspec.Raw(codec.encode(result)) for result in results]
        self.ms: Times = {"put": [], "renew": [], "lease": []}
        self.served, self.refused = set[str](), Counter[str]()
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, FILES)

    async def play(self, names: list[str]) -> None:
        self.until = time.time() + self.seconds
        clients = [asyncio.create_task(self._client(name)) for name in names]
        await asyncio.wait(clients, timeout=self.seconds)
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _client(self, name: str) -> None:
        client = _sharing(self.context, self.endpoint, name)
        held = set[str]()
        try:
            await asyncio.gather(self._beat(client, name, held), self._put(client, name, held))
        except BufferUnavailable as error:
            self.refused[str(error).partition(" s; ")[2]] += 1
        finally:
            client._drop_socket()
            client._peer.closed = True  # its context is that of all

    async def _beat(self, client: AsyncBufferClient, name: str, held: set[str]) -> None:
        await asyncio.sleep(HEARTBEAT_S * random.random())
        while time.time() < self.until:
            await self._timed("renew", client.renew(list(held), name, {"tokens_per_s": 1.0}))
            self.served.add(name)
            await asyncio.sleep(HEARTBEAT_S)

    async def _put(self, client: AsyncBufferClient, name: str, held: set[str]) -> None:
        while time.time() < self.until:
            lease = await self._timed("lease", client.lease(name, 0, PLAN))
            self.served.add(name)
            if not isinstance(lease, Lease):
                await asyncio.sleep(lease.retry_s)
                continue
            held.add(lease.group_id)
            for raw in self.raws:
                put = Call[operations.PutAck](operations.Put(lease.group_id, name, None, (raw,)))
                await self._timed("put", client._ask(put))
            held.discard(lease.group_id)

    async def _timed(self, what: str, request: Coroutine[Any, Any, T]) -> T:
        began = time.perf_counter()
        try:
            return await request
        finally:
            self.ms[what].append((time.perf_counter() - began) * 1e3)


def _sharing(context: Any, endpoint: str, name: str) -> AsyncBufferClient:
    """A client whose socket has no thread of its own, so that a process may have hundreds."""
    client = AsyncBufferClient(endpoint, name=name, timeout_s=60)
    client._context.term()
    client._context = context
    return client


def crowd_of(
    endpoint: str, nbytes: int, seconds: float, names: list[str], ready: Any, out: Any
) -> None:
    """A process of clients; begins when all are `ready`."""
    logging.disable(logging.WARNING)
    allow_files(FILES)
    some = Crowd(endpoint, nbytes, seconds)
    ready.wait()
    with suppress(asyncio.CancelledError):
        asyncio.run(some.play(names))
    out.put((some.ms, len(some.served), some.refused))


@click.command()
@click.option("--clients", default="16,64,256,1000", show_default=True, help="numbers of clients")
@click.option("--nbytes", default=600_000, show_default=True, help="size of a result")
@click.option("--seconds", default=15.0, show_default=True, help="length of each storm")
@click.option("--processes", default=2, show_default=True, help="that share the clients")
@click.option("--folder", type=click.Path(path_type=Path), help="where; default a temporary one")
def crowd(clients: str, nbytes: int, seconds: float, processes: int, folder: Path | None) -> None:
    """Puts a second, and how long puts, heartbeats and leases wait, by the number of clients."""
    for number in map(int, clients.split(",")):
        with (
            tempfile.TemporaryDirectory(prefix="buffer-crowd-", dir=folder) as place,
            Service(Path(place) / "store", *SETTINGS) as service,
        ):
            click.echo(_storm(service, number, nbytes, seconds, min(processes, number)))


def _storm(service: Service, number: int, nbytes: int, seconds: float, processes: int) -> str:
    service.client.add_tasks([Task(f"t{i}", "simulated", i) for i in range(1000)])
    names = [f"actor-{i}" for i in range(number)]
    spawn = multiprocessing.get_context("spawn")
    ready, out = spawn.Barrier(processes + 1), spawn.Queue()
    fleets = [
        spawn.Process(
            target=crowd_of,
            args=(service.endpoint, nbytes, seconds, names[i::processes], ready, out),
        )
        for i in range(processes)
    ]
    for fleet in fleets:
        fleet.start()
    ready.wait()
    used, machine, began = service.cpu_s, _machine_s(), time.monotonic()
    done = [out.get(timeout=10 * seconds + 300) for _ in fleets]
    took, used = time.monotonic() - began, service.cpu_s - used
    puts = service.client.stats().puts
    busy = (_machine_s() - machine) / took
    for fleet in fleets:
        fleet.join()
    words = ", ".join(f"{what} {_spread(done, what)}" for what in ("put", "renew", "lease"))
    refused: Counter[str] = sum((part[2] for part in done), Counter())
    return (
        f"{number} clients, {sum(part[1] for part in done)} served: {puts / took:.1f} puts/s, "
        f"{puts * nbytes / took / 1e6:.1f} MB/s; p50/p99/max ms: {words}; "
        f"service {used / took:.2f} cores, all of the machine {busy:.2f}, "
        f"{used / max(puts, 1) * 1e3:.2f} ms of CPU a put; refused by the service "
        f"{service.client.stats().refused}; not served {dict(refused)}"
    )


def _spread(done: list[tuple[Times, int, Counter[str]]], what: str) -> str:
    values = [ms for part in done for ms in part[0][what]]
    return "/".join(f"{quantile(values, q):.0f}" for q in (0.5, 0.99, 1.0))


def _machine_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
