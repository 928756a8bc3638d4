"""`make soak-actors`: actors are killed again and again in a job whose weights change."""

import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from buffer import BufferClient
from tests.system.test_actor import Job

MINUTES = float(os.environ.get("R3L_SOAK_MINUTES", "0"))
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not MINUTES, reason="takes minutes; make soak-actors runs it"),
    pytest.mark.timeout(60 * MINUTES + 600),
]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path, lease_s=10)
    yield job
    job.close()


class Learner:
    """Draws `count` groups at a time, commits and publishes as a learner does, without learning
    anything."""

    def __init__(self, job: Job, count: int = 4) -> None:
        self.job, self.count, self.over = job, count, threading.Event()
        self.trained: list[str] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._guarded, daemon=True)
        self.thread.start()

    def _guarded(self) -> None:
        try:
            keys = self.job.learner_keys
            with BufferClient(self.job.buffer, name="learner", keys=keys) as client:
                self._run(client)
        except Exception as error:
            self.error = error

    def _run(self, client: BufferClient) -> None:
        version, weights = 3, self.job.weights
        client.set_version(version)
        while not self.over.is_set():
            draw = client.draw(self.count, version, wait_s=1.0)
            if draw is None:
                continue
            version += 1
            client.commit(draw.draw_id, version - 3, version)
            self.trained += [group.group_id for group in draw.groups]
            weights = [(name, t * 1.0001 if version % 2 else t / 1.0001) for name, t in weights]
            self.job.publisher.publish(version, weights)

    def stop(self) -> int:
        """Ends the thread; the number of groups, each of which was trained once."""
        self.over.set()
        self.thread.join()
        assert self.error is None and len(set(self.trained)) == len(self.trained)
        return len(self.trained)


def test_actors_killed_repeatedly_lose_no_accepted_result(job: Job) -> None:
    chance, kills = random.Random(0), 0
    actors = {name: job.join(name) for name in ("actor-0", "actor-1")}
    learner = Learner(job)
    end = time.monotonic() + 60 * MINUTES
    while time.monotonic() < end:
        time.sleep(chance.uniform(20, 40))
        at_work = [name for name in actors if job.report(name)]  # the others' engines still start
        if at_work:
            victim = actors.pop(chance.choice(at_work))
            job.kill(victim)
            kills += 1
            actors[f"actor-{kills + 1}"] = job.join(f"actor-{kills + 1}")
    trained = learner.stop()
    job.kill(*actors.values())
    stats = job.client.stats()
    taken_over = sum(metrics.get("taken_over", 0) for metrics in stats.actors.values())
    results = sum(len(group.results) for group in job.stored())
    print(f"{kills} kills, {stats.leases_expired} leases expired, {taken_over:.0f} groups taken")
    print(f"over, {stats.puts} results accepted, {trained} groups trained")
    assert kills and taken_over > 0 and stats.drops == {}
    assert results == stats.puts and trained > 0
