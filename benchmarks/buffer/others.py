"""Other stores: Redis, and SQLite, torchrl and bare LMDB behind a simple service.

One that is not installed raises Unavailable.
"""

import multiprocessing
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import zmq

from benchmarks.buffer.clock import (
    A_COMMIT,
    BATCH,
    IN_FLIGHT,
    Run,
    Speed,
    Unavailable,
    group_blob,
    group_results,
)
from r3l import codec


def bare_service(run: Run) -> dict[str, Speed]:
    """LMDB behind the simplest service: bytes in, bytes out, no lease, no check, no ledger. What
    a Python service over ZeroMQ costs before it does anything for its users."""
    return behind_service(run, lmdb_storage)


def redis_everysec(run: Run) -> dict[str, Speed]:
    """Redis with an append-only file synced every second: a crash loses up to a second."""
    try:
        import redis
    except ImportError:
        raise Unavailable("no Python client: pip install redis") from None
    program = shutil.which("redis-server")
    if program is None:
        raise Unavailable("no redis-server on the PATH: apt-get install redis-server")
    with socket.socket() as free:  # Redis takes port 0 for none, so one is chosen here
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "--port", str(port), "--dir", str(run.folder), "--save", ""]
    server = subprocess.Popen(
        [*command, "--appendonly", "yes", "--appendfsync", "everysec"], stdout=subprocess.DEVNULL
    )
    speeds: dict[str, Speed] = {}
    blob = group_blob()
    try:
        client = redis.Redis(port=port)
        _until_answers(client.ping)
        with run.clock("put", speeds, len(blob), server.pid):
            for start in range(0, run.groups, IN_FLIGHT):  # as many commands under way
                with client.pipeline(transaction=False) as pipe:
                    for number in range(start, min(start + IN_FLIGHT, run.groups)):
                        pipe.hset("groups", str(number), blob)
                    pipe.execute()
        with run.clock("draw", speeds, len(blob), server.pid):
            for start in range(0, run.groups, BATCH * IN_FLIGHT):
                with client.pipeline(transaction=False) as pipe:
                    for first in range(start, min(start + BATCH * IN_FLIGHT, run.groups), BATCH):
                        pipe.hmget("groups", [str(n) for n in range(first, first + BATCH)])
                    assert all(all(batch) for batch in pipe.execute())
        client.close()
    finally:
        server.terminate()
        server.wait(timeout=30)
    return speeds


def _until_answers(ping: Callable[[], Any]) -> None:
    for _ in range(200):
        try:
            ping()
            return
        except Exception:  # it is starting; its own error type is not ours to import
            time.sleep(0.05)
    raise Unavailable("redis-server did not start")


def sqlite_full(run: Run) -> dict[str, Speed]:
    """SQLite behind a service like ours: WAL, synchronous FULL, what waits in one commit."""
    return behind_service(run, sqlite_storage)


def torchrl_memmap(run: Run) -> dict[str, Speed]:
    """torchrl's LazyMemmapStorage behind a service like ours; nothing is synced."""
    try:
        import torchrl.data  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        raise Unavailable(f"torchrl cannot be imported: {error!r:.120}") from None
    return behind_service(run, torchrl_storage)


Put = Callable[[int, list[bytes]], None]  # first number, groups
Get = Callable[[list[int]], list[bytes]]
Storage = Callable[[Path, int], tuple[Put, Get]]  # folder, groups


def behind_service(run: Run, storage: Storage) -> dict[str, Speed]:
    """The storage in a process of its own, asked over loopback TCP, as many requests under way."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=_serve, args=(storage, run.folder, run.groups, theirs))
    server.start()
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{ours.recv()}")
    speeds: dict[str, Speed] = {}
    results = group_results()
    size = len(group_blob())
    with run.clock("put", speeds, size, server.pid):
        for number in range(run.groups + IN_FLIGHT):
            if number >= IN_FLIGHT:
                dealer.recv_multipart()
            if number < run.groups:
                dealer.send_multipart([b"put", b"".join(map(codec.encode, results))])
    with run.clock("draw", speeds, size, server.pid):
        for number in range(run.groups // BATCH + IN_FLIGHT):
            if number >= IN_FLIGHT:
                assert len(dealer.recv_multipart()) == BATCH
            if (start := number * BATCH) < run.groups:
                dealer.send_multipart([b"get", *(b"%d" % n for n in range(start, start + BATCH))])
    dealer.send_multipart([b"end"])
    server.join()
    context.destroy(linger=0)
    return speeds


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
        for client, operation, *arguments in waiting:
            if operation == b"end":
                return
            answer = [b"ok"] if operation == b"put" else get([int(n) for n in arguments])
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
