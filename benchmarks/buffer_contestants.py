"""Who takes part in benchmarks.buffer: our service, the limits, the peers.

Each contestant puts `run.groups` groups and then draws them in batches of 12, and returns its
Figures by verb. One that needs something which is not installed raises NotHere.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import psutil
import zmq

from benchmarks.buffer_service import Service, attempt
from buffer import AsyncBufferClient, Lease, Wait
from r3l import codec
from r3l.records import GroupPlan, SlotResult, Task

SLOTS, TOKENS, BATCH, A_COMMIT = 8, 1024, 12, 32
IN_FLIGHT, LEASES = 16, 96  # requests under way at a time
COLUMNS = SLOTS * TOKENS * (4 + 4 + 1)  # bytes of ids, log-probabilities and mask of a group


class NotHere(Exception):
    """This contestant cannot take part, and why."""


@dataclass(frozen=True)
class Figures:
    """Speed of one verb: groups a second, CPU per group, bytes per group."""

    groups_per_s: float
    client_ms: float
    server_ms: float
    nbytes: int


@dataclass(frozen=True)
class Run:
    """One contestant's turn: a folder of its own and how many groups."""

    folder: Path
    groups: int

    @contextmanager
    def clock(
        self, what: str, figures: dict[str, Figures], nbytes: int, server: int | None = None
    ) -> Iterator[None]:
        """Measure the block, in which all groups are put or drawn."""
        processes = [psutil.Process(pid) for pid in (None, server) if pid != 0]
        before = [_cpu(process) for process in processes]
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        used = [(_cpu(p) - b) / self.groups * 1e3 for p, b in zip(processes, before, strict=True)]
        figures[what] = Figures(
            self.groups / seconds, used[0], used[1] if server is not None else 0.0, nbytes
        )


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _results() -> list[SlotResult]:
    return [attempt("base", slot, 0, TOKENS) for slot in range(SLOTS)]


def _blob() -> bytes:
    """A group as the peers are given it: its encoded record, as one string of bytes."""
    return b"".join(codec.encode(result) for result in _results())


# ── us ──────────────────────────────────────────────────────────────────────────────────────


def r3l_service(run: Run) -> dict[str, Figures]:
    """Leased groups put whole by 16 coroutines of one client, drawn by 16, and drawn again and
    read: every array of every group made and checked."""
    figures: dict[str, Figures] = {}
    options = (f"learner.groups_per_step={run.groups}", "buffer.max_staleness=1")
    with Service(run.folder / "store", *options) as service:
        service.client.add_tasks([Task(f"t{i}", "bench", i) for i in range(100)])
        results, pid = _results(), service.process.pid

        async def put_and_draw() -> None:
            async with AsyncBufferClient(service.endpoint, timeout_s=60) as client:
                plan = GroupPlan(SLOTS)
                leases: list[Lease | Wait] = []
                for _ in range(0, run.groups, LEASES):
                    leases += await asyncio.gather(
                        *(client.lease("a", 0, plan) for _ in range(LEASES))
                    )
                ids = iter([lease.group_id for lease in leases if isinstance(lease, Lease)])

                async def put_some() -> None:
                    for group_id in ids:
                        assert (await client.put(group_id, "a", results)).complete

                with run.clock("put", figures, len(_blob()), pid):
                    await asyncio.gather(*(put_some() for _ in range(IN_FLIGHT)))

                async def draw_some(batches: Iterator[int], read: bool) -> None:
                    for _ in batches:
                        draw = await client.draw(BATCH, 0)
                        assert draw is not None and len(draw.groups) == BATCH
                        assert not read or all(len(g.results) == SLOTS for g in draw.groups)

                for what in ("draw", "draw, read"):
                    batches = iter(range(run.groups // BATCH))
                    with run.clock(what, figures, len(_blob()), pid):
                        await asyncio.gather(
                            *(draw_some(batches, what != "draw") for _ in range(IN_FLIGHT))
                        )
                    await client.release_draws()

        asyncio.run(put_and_draw())
    return figures


# ── limits ──────────────────────────────────────────────────────────────────────────────────


def memcpy(run: Run) -> dict[str, Figures]:
    """Copying a group's columns within memory."""
    figures: dict[str, Figures] = {}
    source = np.frombuffer(bytes(COLUMNS * run.groups), np.uint8)
    target = np.empty(COLUMNS, np.uint8)
    with run.clock("draw", figures, COLUMNS):
        for start in range(0, len(source), COLUMNS):
            np.copyto(target, source[start : start + COLUMNS])
    return figures


def raw_lmdb(run: Run, a_commit: int = A_COMMIT) -> dict[str, Figures]:
    """LMDB in this process, synchronous, 32 groups a commit; read back as bytes."""
    figures: dict[str, Figures] = {}
    blob = _blob()
    env = lmdb.open(str(run.folder), map_size=8 << 30, readahead=False, lib_version=0)
    with run.clock("put", figures, len(blob)):
        for start in range(0, run.groups, a_commit):
            with env.begin(write=True) as txn:
                for number in range(start, min(start + a_commit, run.groups)):
                    txn.put(number.to_bytes(8, "big"), blob)
    with run.clock("draw", figures, len(blob)), env.begin() as txn:
        for number in range(run.groups):
            assert len(txn.get(number.to_bytes(8, "big")) or b"") == len(blob)
    env.close()
    return figures


def raw_lmdb_in_flight(run: Run) -> dict[str, Figures]:
    """As many groups a commit as there are puts under way: the most that any service behind which
    this LMDB lies can commit at once, and while it does, it receives nothing."""
    return {"put": raw_lmdb(run, IN_FLIGHT)["put"]}


def raw_zeromq(run: Run) -> dict[str, Figures]:
    """Batches of 12 groups as 12 frames, over loopback TCP, 16 requests under way; no store."""
    figures: dict[str, Figures] = {}
    blob, context = _blob(), zmq.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        for _ in range(run.groups // BATCH):
            client, *_ = router.recv_multipart()
            router.send_multipart([client, *[blob] * BATCH], copy=False)

    thread = threading.Thread(target=serve)
    thread.start()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    with run.clock("draw", figures, len(blob)):
        for number in range(run.groups // BATCH + IN_FLIGHT):
            if number >= IN_FLIGHT:
                assert len(dealer.recv_multipart()) == BATCH
            if number < run.groups // BATCH:
                dealer.send(b"")
    thread.join()
    context.destroy(linger=0)
    return figures


def bare_service(run: Run) -> dict[str, Figures]:
    """LMDB behind the simplest service: bytes in, bytes out, no lease, no check, no ledger. What
    a Python service over ZeroMQ costs before it does anything for its users."""
    return behind_service(run, lmdb_storage)


# ── peers ───────────────────────────────────────────────────────────────────────────────────


def redis_everysec(run: Run) -> dict[str, Figures]:
    """Redis with an append-only file synced every second: a crash loses up to a second."""
    try:
        import redis
    except ImportError:
        raise NotHere("no Python client: pip install redis") from None
    program = shutil.which("redis-server")
    if program is None:
        raise NotHere("no redis-server on the PATH: apt-get install redis-server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--dir", str(run.folder), "--save", ""]
    server = subprocess.Popen(
        [*command, "--appendonly", "yes", "--appendfsync", "everysec"], stdout=subprocess.DEVNULL
    )
    figures: dict[str, Figures] = {}
    blob = _blob()
    try:
        client = redis.Redis(port=port)
        _until_answers(client.ping)
        with run.clock("put", figures, len(blob), server.pid):
            for start in range(0, run.groups, IN_FLIGHT):  # as many commands under way
                with client.pipeline(transaction=False) as pipe:
                    for number in range(start, min(start + IN_FLIGHT, run.groups)):
                        pipe.hset("groups", str(number), blob)
                    pipe.execute()
        with run.clock("draw", figures, len(blob), server.pid):
            for start in range(0, run.groups, BATCH * IN_FLIGHT):
                with client.pipeline(transaction=False) as pipe:
                    for first in range(start, min(start + BATCH * IN_FLIGHT, run.groups), BATCH):
                        pipe.hmget("groups", [str(n) for n in range(first, first + BATCH)])
                    assert all(all(batch) for batch in pipe.execute())
        client.close()
    finally:
        server.terminate()
        server.wait(timeout=30)
    return figures


def _until_answers(ping: Callable[[], Any]) -> None:
    for _ in range(200):
        try:
            ping()
            return
        except Exception:  # it is starting; its own error type is not ours to import
            time.sleep(0.05)
    raise NotHere("redis-server did not start")


def sqlite_full(run: Run) -> dict[str, Figures]:
    """SQLite behind a service like ours: WAL, synchronous FULL, what waits in one commit."""
    return behind_service(run, sqlite_storage)


def torchrl_memmap(run: Run) -> dict[str, Figures]:
    """torchrl's LazyMemmapStorage behind a service like ours; nothing is synced."""
    try:
        import torchrl.data  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        raise NotHere(f"torchrl cannot be imported: {error!r:.120}") from None
    return behind_service(run, torchrl_storage)


Put = Callable[[int, list[bytes]], None]  # first number, groups
Get = Callable[[list[int]], list[bytes]]
Storage = Callable[[Path, int], tuple[Put, Get]]  # folder, groups


def behind_service(run: Run, storage: Storage) -> dict[str, Figures]:
    """The storage in a process of its own, asked over loopback TCP, as many requests under way."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=_serve, args=(storage, run.folder, run.groups, theirs))
    server.start()
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{ours.recv()}")
    figures: dict[str, Figures] = {}
    results = _results()
    size = len(_blob())
    with run.clock("put", figures, size, server.pid):
        for number in range(run.groups + IN_FLIGHT):
            if number >= IN_FLIGHT:
                dealer.recv_multipart()
            if number < run.groups:
                dealer.send_multipart([b"put", b"".join(map(codec.encode, results))])
    with run.clock("draw", figures, size, server.pid):
        for number in range(run.groups // BATCH + IN_FLIGHT):
            if number >= IN_FLIGHT:
                assert len(dealer.recv_multipart()) == BATCH
            if (start := number * BATCH) < run.groups:
                dealer.send_multipart([b"get", *(b"%d" % n for n in range(start, start + BATCH))])
    dealer.send_multipart([b"end"])
    server.join()
    context.destroy(linger=0)
    return figures


def _serve(storage: Storage, folder: Path, groups: int, pipe: Any) -> None:
    put, get = storage(folder, groups)
    router = zmq.Context().socket(zmq.ROUTER)
    pipe.send(router.bind_to_random_port("tcp://127.0.0.1"))
    number = 0
    while True:
        waiting = [router.recv_multipart()]
        while len(waiting) < A_COMMIT and router.poll(0):
            waiting.append(router.recv_multipart())
        puts = [message for message in waiting if message[1] == b"put"]
        if puts:
            put(number, [message[2] for message in puts])
            number += len(puts)
        for client, verb, *arguments in waiting:
            if verb == b"end":
                return
            answer = [b"ok"] if verb == b"put" else get([int(n) for n in arguments])
            router.send_multipart([client, *answer], copy=False)


def sqlite_storage(folder: Path, groups: int) -> tuple[Put, Get]:
    """A table of blobs."""
    base = sqlite3.connect(folder / "groups.db", isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE groups (id INTEGER PRIMARY KEY, data BLOB)")

    def put(first: int, blobs: list[bytes]) -> None:
        base.execute("BEGIN")
        base.executemany("INSERT INTO groups VALUES (?, ?)", list(enumerate(blobs, first)))
        base.execute("COMMIT")

    def get(numbers: list[int]) -> list[bytes]:
        query = "SELECT data FROM groups WHERE id >= ? AND id <= ?"
        return [data for (data,) in base.execute(query, (numbers[0], numbers[-1]))]

    return put, get


def lmdb_storage(folder: Path, groups: int) -> tuple[Put, Get]:
    """LMDB, synchronous, a key a group."""
    env = lmdb.open(str(folder / "lmdb"), map_size=8 << 30, readahead=False, lib_version=0)

    def put(first: int, blobs: list[bytes]) -> None:
        with env.begin(write=True) as txn:
            for number, blob in enumerate(blobs, first):
                txn.put(number.to_bytes(8, "big"), blob)

    def get(numbers: list[int]) -> list[bytes]:
        with env.begin() as txn:
            return [txn.get(number.to_bytes(8, "big")) or b"" for number in numbers]

    return put, get


def torchrl_storage(folder: Path, groups: int) -> tuple[Put, Get]:
    """A memory-mapped tensor of bytes."""
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage

    storage = LazyMemmapStorage(groups, scratch_dir=str(folder / "memmap"))

    def put(first: int, blobs: list[bytes]) -> None:
        rows = np.stack([np.frombuffer(blob, np.uint8) for blob in blobs])
        data = TensorDict({"data": torch.from_numpy(rows)}, batch_size=[len(blobs)])
        storage.set(range(first, first + len(blobs)), data)

    def get(numbers: list[int]) -> list[bytes]:
        return [bytes(row.numpy()) for row in storage.get(numbers)["data"]]

    return put, get


CONTESTANTS: dict[str, Callable[[Run], dict[str, Figures]]] = {
    "r3l service": r3l_service,
    "memcpy": memcpy,
    "raw ZeroMQ": raw_zeromq,
    "raw LMDB": raw_lmdb,
    "raw LMDB, 16 a commit": raw_lmdb_in_flight,
    "bare service": bare_service,
    "Redis AOF everysec": redis_everysec,
    "SQLite WAL full": sqlite_full,
    "torchrl memmap": torchrl_memmap,
}
