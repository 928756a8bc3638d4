"""Upper limits: memory, LMDB and ZeroMQ without a service."""

import threading

import lmdb
import numpy as np
import zmq

from benchmarks.buffer.clock import A_COMMIT, BATCH, COLUMNS, IN_FLIGHT, Run, Speed, group_blob


def memcpy(run: Run) -> dict[str, Speed]:
    """Copying a group's columns within memory."""
    speeds: dict[str, Speed] = {}
    source = np.frombuffer(bytes(COLUMNS * run.groups), np.uint8)
    target = np.empty(COLUMNS, np.uint8)
    with run.clock("draw", speeds, COLUMNS):
        for start in range(0, len(source), COLUMNS):
            np.copyto(target, source[start : start + COLUMNS])
    return speeds


def raw_lmdb(run: Run, a_commit: int = A_COMMIT) -> dict[str, Speed]:
    """LMDB in this process, synchronous, 32 groups a commit; read back as bytes."""
    speeds: dict[str, Speed] = {}
    blob = group_blob()
    env = lmdb.open(str(run.folder), map_size=8 << 30, readahead=False, lib_version=0)
    with run.clock("put", speeds, len(blob)):
        for start in range(0, run.groups, a_commit):
            with env.begin(write=True) as txn:
                for number in range(start, min(start + a_commit, run.groups)):
                    txn.put(number.to_bytes(8, "big"), blob)
    with run.clock("draw", speeds, len(blob)), env.begin() as txn:
        for number in range(run.groups):
            assert len(txn.get(number.to_bytes(8, "big")) or b"") == len(blob)
    env.close()
    return speeds


def raw_lmdb_in_flight(run: Run) -> dict[str, Speed]:
    """As many groups a commit as there are puts under way: the most that any service behind which
    this LMDB lies can commit at once, and while it does, it receives nothing."""
    return {"put": raw_lmdb(run, IN_FLIGHT)["put"]}


def raw_zeromq(run: Run) -> dict[str, Speed]:
    """Batches of 12 groups as 12 frames, over loopback TCP, 16 requests under way; no store."""
    speeds: dict[str, Speed] = {}
    blob, context = group_blob(), zmq.Context()
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
    with run.clock("draw", speeds, len(blob)):
        for number in range(run.groups // BATCH + IN_FLIGHT):
            if number >= IN_FLIGHT:
                assert len(dealer.recv_multipart()) == BATCH
            if number < run.groups // BATCH:
                dealer.send(b"")
    thread.join()
    context.destroy(linger=0)
    return speeds
