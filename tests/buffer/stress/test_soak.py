"""A run in which everything is killed again and again: nothing acknowledged is lost, nothing is
trained twice. `make soak` does it 200 times and more."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from buffer import BufferClient
from buffer.storage.store import Store
from buffer.tools.verify import verify
from tests.buffer.stress import players

OPTIONS = (
    f"learner.groups_per_step={players.PER_STEP}",
    f"buffer.max_staleness={players.STALENESS}",
)
OPTIONS += ("buffer.lease_s=2", "buffer.retention.groups=30", "buffer.retention.grace_s=5")


class Player:
    """An actor or the learner, started again whenever it was killed."""

    def __init__(self, folder, endpoint, role, name):
        self.log = folder / f"{name}.log"
        self.errors = folder / f"{name}.err"
        self.command = [sys.executable, "-m", "tests.buffer.stress.players", role, endpoint]
        self.command += [str(self.log), name]
        self.start()

    def start(self):
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stderr=errors,
                cwd=Path(__file__).parents[3],
            )

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.start()

    def stop(self):
        self.process.communicate(b"stop", timeout=120)
        assert self.process.returncode == 0, self.errors.read_text()


@pytest.fixture
def cast(serve, tmp_path, tasks):
    """A service, two actors and a learner at work."""
    served = serve("tcp://127.0.0.1:0", *OPTIONS)
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(50))
    names = {"learner": "learner", "a0": "actor", "a1": "actor"}
    cast = [Player(tmp_path, served.endpoint, role, name) for name, role in names.items()]
    yield served, cast
    for player in cast:
        player.process.kill()
        player.process.wait()


@pytest.mark.system
def test_repeated_kills_lose_and_repeat_nothing(cast, serve, tmp_path, soak):
    served, people = cast
    chance, endpoint, began = random.Random(1), served.endpoint, time.monotonic()
    kills = 200 if soak else 8
    for number in range(kills):
        time.sleep(0.5 * chance.random())
        if number % 5 == 4:
            chance.choice(people).kill()
        served.kill()
        served = serve(endpoint, *OPTIONS)
    while len(_acknowledged(people)[0]) < 3:  # on a slow machine they got nowhere in between
        time.sleep(0.1)
    for player in people:
        player.stop()
    with BufferClient(endpoint) as client:
        stats = client.stats()
    assert served.stop() == 0
    store = Store(served.folder, read_only=True)
    assert verify(store) == []
    steps, puts = _acknowledged(people)
    assert not _missing(store, steps, puts)
    store.close()
    print(
        f"soak: {kills} kills of the service, {kills // 5} of others in "
        f"{time.monotonic() - began:.0f} s; {len(puts)} acknowledged puts, {len(steps)} steps, "
        f"{stats.evicted} groups evicted, {stats.rewound} rewound: none lost, none repeated"
    )


def _acknowledged(people):
    """Steps and puts that the logs say were acknowledged."""
    lines = {player: players.read_log(player.log) for player in people}
    assert not [line for log in lines.values() for line in log if line[0] == "stale"]
    _, steps = players.committed(lines[people[0]])
    puts = {(line[1], line[2]) for log in lines.values() for line in log if line[0] == "put"}
    return steps, puts


def _missing(store, steps, puts):
    """Acknowledged steps and puts that the store does not have."""
    with store.read() as txn:
        trained = [g for step in txn.steps() for g in step.groups]
        assert len(trained) == len(set(trained))
        lost = [
            step
            for step, groups in steps.items()
            if (line := txn.step(step)) is None or list(line.groups) != groups
        ]
        for group_id, key in puts:  # a slot, or the name of a reflection
            row = txn.row(group_id)
            held = () if row is None else (*row.resolved_slots, *dict(row.reflections))
            lost += [] if txn.evicted(group_id) or key in held else [(group_id, key)]
    return lost
