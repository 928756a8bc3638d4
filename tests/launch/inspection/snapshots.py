"""Snapshots made by hand."""

from buffer.wire.operations import BufferStats
from launch.inspection.snapshot import ActorState, Buffer, Forecast, Process, Snapshot

GIB = 1 << 30


def buffer(*, reply_s=0.002, error="", map_free_bytes=60 * GIB, **stats):
    """A service whose learner has reached step 12."""
    stats = {"puts": 900, "free_bytes": 100 * GIB, "learner_version": 12} | stats
    return Buffer("tcp://127.0.0.1:5555", reply_s, error, map_free_bytes,
                  BufferStats(**stats))  # fmt: skip


def process(name, pid, state="sleeping"):
    return Process(name, pid, state, since=1000.0, memory_bytes=100 << 20, parent=10)


def healthy(**changes):
    """A run of two actors in its twelfth step."""
    values = {
        "run": "runs/first",
        "at": 5000.0,
        "processes": [process("buffer", 11), process("learner", 12), process("actor-0", 13),
                      process("actor-1", 14)],
        "launcher": 10,
        "progress": Forecast(12, 60, 4.0, 10.0, 6.0, 476.0),
        "needed": 16,
        "max_staleness": 1,
        "lease_s": 120.0,
        "hang_s": 900.0,
        "learner_doing": "micro-batch 3 of 8",
        "heartbeat_ago_s": 0.5,
        "buffer": buffer(train={"complete": 9, "leased": 4}),
        "actors": [ActorState("actor-0.ab", "actor-0", 0.4, 12, 30, 0.1),
                   ActorState("actor-1.cd", "actor-1", 0.4, 11, 0, 0.9)],
    }  # fmt: skip
    return Snapshot(**(values | changes))
