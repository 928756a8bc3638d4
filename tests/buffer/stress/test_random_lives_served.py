"""The same random lives with a real service, which is killed again and again while it is asked,
and copied while it serves."""

import random
import threading
import time
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from buffer import BufferClient
from buffer.storage.store import Store
from r3l import codec
from tests.buffer.fakes import Served
from tests.buffer.groups.test_random_lives import ETA, PER_STEP, Lives

OPTIONS = (
    f"learner.groups_per_step={PER_STEP}",
    f"buffer.max_staleness={ETA}",
    "buffer.lease_s=86400",
)


class Window:
    """A Desk whose operations go to a real service; its store is read next to it."""

    def __init__(self, folder, *options):
        self.folder, self.options = folder, (*OPTIONS, *options)
        self.served = Served(folder, "tcp://127.0.0.1:0", *self.options)
        self.client = BufferClient(self.served.endpoint, timeout_s=60)
        self.store = Store(folder, read_only=True)
        self.over, self.kills = threading.Event(), 0
        self.killer = threading.Thread(target=self._kill_it_again_and_again, daemon=True)
        self.killer.start()

    def __getattr__(self, operation):
        return getattr(self.client, operation)

    def add(self, tasks):
        return self.client.add_tasks(tasks)

    def lease(self, actor, version, plan):
        return self.client.lease(actor, version, plan)

    def put(self, group_id, result, actor):
        return self.client.put(group_id, actor, result)

    def put_partial(self, group_id, result, actor, since=None):
        known = None if since is None else codec.encode(since)
        return self.client.put_partial(group_id, actor, result, since=known)

    def draw(self, count, version):
        drawn = self.client.draw(count, version)
        if drawn is None:
            return None
        ids = tuple(group.group_id for group in drawn.groups)
        return SimpleNamespace(
            draw_id=drawn.draw_id,
            groups=ids,
            records=list(drawn.groups),
            replaced=drawn.row.replaced,
            replayed=drawn.row.replayed,
        )

    def commit(self, draw_id, step):
        self.client.commit(draw_id, step, step)

    def row(self, group_id):
        with self.store.read() as txn:
            return txn.row(group_id)

    def _kill_it_again_and_again(self):
        """Some requests get a reply, and the next is hit: a service lives at most a quarter
        of the time that it takes to start."""
        chance, life_s = random.Random(self.served.process.pid), 0.1
        while not self.over.wait(life_s * chance.random()):
            began = time.monotonic()
            self.served.kill()
            self.served = Served(self.folder, self.served.endpoint, *self.options)
            life_s = (time.monotonic() - began) / 4
            self.kills += 1

    def close(self):
        self.over.set()
        self.killer.join()
        self.client.close()
        assert self.served.stop() == 0


class ServedLives(Lives):
    kills = 0

    def open_desk(self):
        self.patience = mock.patch("buffer.client.clients.FIRST_TRY_S", 0.2)
        self.patience.start()
        return Window(
            self.folder / "store",
            f"buffer.sampler={self.sampler}",
            "algorithm=dapo",
            f"algorithm.filter={str(self.needs_contrast).lower()}",
        )

    def teardown(self):
        if hasattr(self, "desk"):
            self.desk.close()
            self.patience.stop()
            ServedLives.kills += self.desk.kills
        super().teardown()

    def was_new(self, ack, known):
        """A put that was sent again says that nothing of it was new."""
        return bool(ack.new) or not known

    def remembers(self, txn):
        stats, counts = self.desk.stats(), txn.counts()
        assert (stats.draws, stats.made) == (counts["draws"], counts["made"])
        remembered = sum(map(len, self.steps.values()))
        assert stats.trained == remembered + stats.rewound_evicted

    restart = time_passes = learner_is_silent_for_too_long = evict = None  # it does so by itself
    commit_after_the_draw_expired = move_to_a_snapshot = None


@pytest.mark.system
def test_lives_of_a_service_that_is_killed_while_it_is_asked(soak):
    lives = settings(
        max_examples=4,
        stateful_step_count=100 if soak else 50,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(ServedLives, settings=lives)
    print(f"served lives: {ServedLives.kills} kills of the service")
    assert ServedLives.kills > 0
