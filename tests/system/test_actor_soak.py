"""`make soak-actors`: actors are killed again and again, in a job whose weights change, and in one
whose attempts take as long as an actor lives."""

import os
import random
import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from buffer import BufferClient
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from envs.builtin.policy import builtin_policy
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.records import Group
from tests.system import long_walk
from tests.system.test_actor import Job, until

MINUTES = float(os.environ.get("R3L_SOAK_MINUTES", "0"))
KILL_S = float(os.environ.get("R3L_SOAK_KILL_S", "60"))
RESPONSE_S = os.environ.get("R3L_SOAK_RESPONSE_S", "2")
PROGRESS_S = os.environ.get("R3L_SOAK_PROGRESS_S", "1")  # every response is put
SLOW = "tests.system.slow_actor"
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
            with BufferClient(
                self.job.buffer, name="learner", keys=self.job.learner_keys
            ) as client:
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
            victim.kill()
            victim.wait()
            kills += 1
            actors[f"actor-{kills + 1}"] = job.join(f"actor-{kills + 1}")
    learner.over.set()
    learner.thread.join()
    for actor in actors.values():
        actor.kill()
        actor.wait()
    stats = job.client.stats()
    taken_over = sum(metrics.get("taken_over", 0) for metrics in stats.actors.values())
    job.stop_buffer()
    store = Store(job.folder / "store", read_only=True)
    groups = [store_reads.group(store, row["group"]) for row in store_reads.rows(store)]
    results = sum(len(group.results) for group in groups)
    trained = len(learner.trained)
    print(f"{kills} kills, {stats.leases_expired} leases expired, {taken_over:.0f} groups taken")
    print(f"over, {stats.puts} results accepted, {trained} groups trained")
    assert learner.error is None and kills and taken_over > 0
    assert verify(store) == [] and stats.drops == {}
    assert results == stats.puts
    assert len(set(learner.trained)) == trained > 0
    store.close()


def test_an_actor_killed_repeatedly_loses_one_response_of_each_attempt(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = job.folder / "calls"
    monkeypatch.setenv("R3L_CALLS", str(calls))
    monkeypatch.setenv("R3L_RESPONSE_S", RESPONSE_S)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    world = f"{Path(long_walk.__file__)}:Walk"
    config = configuration.load(None, [
        f"model={builtin_policy()}", f"env={world}", "algorithm=grpo", "algorithm.group_size=4",
        "actor.concurrent_requests=4", f"actor.progress_s={PROGRESS_S}",
    ])  # fmt: skip
    job.config.write_text(configuration.dump(config))
    learner, kills = Learner(job, count=1), 0
    actors = {name: job.join(name, SLOW) for name in ("actor-0", "actor-1")}
    until(lambda: all(map(job.report, actors)), "both are at work")
    end = time.monotonic() + 60 * MINUTES
    while time.monotonic() < end:
        time.sleep(KILL_S)
        victim = actors.pop(next(iter(actors)))  # the oldest
        victim.kill()
        victim.wait()
        kills += 1
        actors[f"actor-{kills + 1}"] = job.join(f"actor-{kills + 1}", SLOW)
    learner.over.set()
    learner.thread.join()
    for actor in actors.values():
        actor.kill()
        actor.wait()
    stats = job.client.stats()
    counts = sum((Counter(a) for a in stats.actors.values()), Counter[str]())
    job.stop_buffer()
    store = Store(job.folder / "store", read_only=True)
    groups = [store_reads.group(store, row["group"]) for row in store_reads.rows(store)]
    again, sampled, lost = losses(groups, calls.read_text(), RunConfig().seed)
    share = 1 - lost / sampled
    print(f"{kills} kills, {len(learner.trained)} groups trained, {sampled} tokens sampled")
    print(f"share that is trained or still wanted: {share:.3f}; {again} responses sampled again")
    print({name: n for name, n in counts.items() if name.startswith("partial")})
    assert learner.error is None and kills
    assert verify(store) == [] and stats.drops == stats.slot_drops == stats.partial_dropped == {}
    assert len(set(learner.trained)) == len(learner.trained) > 0
    if float(PROGRESS_S) <= float(RESPONSE_S) / 2:
        assert share >= 0.95 and again <= 4 * kills  # four attempts in each actor
    store.close()


def losses(groups: list[Group], log: str, seed: int) -> tuple[int, int, int]:
    """Returns the responses that were sampled again, the tokens sampled, and those of them that
    are in no attempt, finished or under way."""
    tokens = defaultdict[int, list[int]](list)
    for line in log.splitlines():
        place, number = map(int, line.split())
        tokens[place].append(number)
    sampled = sum(map(sum, tokens.values()))
    lost = sum(sum(numbers[:-1]) for numbers in tokens.values())
    for group in groups:
        begins = zlib.crc32(f"{seed}/{group.group_id}".encode())
        for result in group.results:
            attempt = result.trajectory
            assert attempt is not None and attempt.num_steps == long_walk.STEPS
            places = [(begins, "base", result.slot, k) for k in range(attempt.num_steps)]
            kept = [tokens[zlib.crc32(repr(place).encode())][-1] for place in places]
            assert kept == (attempt.step_spans[:, 1] - attempt.step_spans[:, 0]).tolist()
    return sum(len(numbers) - 1 for numbers in tokens.values()), sampled, lost
