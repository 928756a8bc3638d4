"""Actors and a learner as processes of their own, to be killed at any moment.

    python -m tests.buffer.stress.players actor ENDPOINT LOG NAME
    python -m tests.buffer.stress.players learner ENDPOINT LOG

Each appends a line to its log once the service has acknowledged what the line says, and goes on
until its input ends.
"""

import json
import os
import select
import sys
import time

from buffer import BufferClient, Lease
from r3l.errors import Conflict, LeaseLost
from r3l.records import GroupPlan
from tests.buffer.fakes import finished, thought

PER_STEP, STALENESS, CHECKPOINT_EVERY = 4, 3, 3


class Log:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, *values):
        os.write(self.file, json.dumps(values).encode() + b"\n")


def read_log(path):
    """The lines of a log; one that was cut off by a kill is left out."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def told_to_stop():
    return bool(select.select([sys.stdin], [], [], 0)[0])


def act(client, log, name):
    while not told_to_stop():
        version = client.stats().learner_version
        lease = client.lease(name, version, GroupPlan(2))
        if not isinstance(lease, Lease):
            time.sleep(0.01)
            continue
        taken = {result.slot for result in lease.accepted}
        said = {reflection.name for reflection in lease.reflections}
        try:
            for slot in {0, 1} - taken:
                if (about := f"on-{slot}") not in said:
                    client.put(lease.group_id, name, thought(about, version=version))
                    log.write("put", lease.group_id, about)
                client.put(lease.group_id, name, finished(slot, version=version))
                log.write("put", lease.group_id, slot)
        except (LeaseLost, Conflict):
            log.write("lost", lease.group_id)


def committed(lines):
    """Version of the last checkpoint, and the groups of every step since the beginning."""
    version, steps = 0, {}
    for kind, *values in lines:
        if kind == "commit":
            steps[values[0]] = values[1]
        elif kind == "checkpoint":
            version = values[0]
        elif kind == "start":  # what came after the checkpoint is forgotten
            steps = {step: groups for step, groups in steps.items() if step <= values[0]}
    return version, steps


def learn(client, log, lines):
    version, _ = committed(lines)
    log.write("start", version)
    client.set_version(version)
    client.release_draws()
    while not told_to_stop():
        draw = client.draw(PER_STEP, version, wait_s=0.2)
        if draw is None:
            continue
        if any(version - group.oldest_version > STALENESS for group in draw.groups):
            log.write("stale", draw.draw_id)
        client.commit(draw.draw_id, version + 1, version + 1)
        version += 1
        log.write("commit", version, [group.group_id for group in draw.groups])
        if version % CHECKPOINT_EVERY == 0:
            log.write("checkpoint", version)


def main(role, endpoint, path, name="learner"):
    from pathlib import Path

    with BufferClient(endpoint, name=name, timeout_s=600) as client:
        if role == "actor":
            act(client, Log(path), name)
        else:
            learn(client, Log(path), read_log(Path(path)))


if __name__ == "__main__":
    main(*sys.argv[1:])
