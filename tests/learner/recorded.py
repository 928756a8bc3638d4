"""Recorded groups instead of actors: a group's content depends on nothing but its id."""

import threading
import time
from collections.abc import Callable, Iterable

import numpy as np
from msgspec.structs import replace

from buffer import BufferClient, Lease
from r3l.records import GroupPlan, SlotResult
from tests.learner.groups import explore_group

REWARDS = [
    ((0.0, 1.0), (1.0, None), 2),
    ((0.0, 0.0), (1.0, 0.0), 1),
    ((1.0, 0.0), (None, 0.5), 3),
]


def recorded_group(group_id: str, version: int, vocab: int = 200):
    """The results of one group as an actor at `version` would have put them."""
    number = int(group_id[1:])
    base, retry, pivot = REWARDS[number % len(REWARDS)]
    group = explore_group(base, retry, pivot=pivot, seed=number, group_id=group_id, vocab=vocab)
    for result in group.results:
        if result.trajectory is None:
            yield result
            continue
        versions = np.full(result.trajectory.num_steps, version, dtype=np.int32)
        yield replace(result, trajectory=replace(result.trajectory, step_versions=versions))


class Recording:
    """An actor that plays recorded groups at the newest version it has seen, in a thread.

    `results`: what it puts for (group id, version), by default `recorded_group`; of an
    evaluation's group the one slot. `before` is called with every lease before it is played.
    """

    def __init__(
        self,
        endpoint: str,
        results: Callable[[str, int], Iterable[SlotResult]] = recorded_group,
        before: Callable[[Lease], None] = lambda lease: None,
    ) -> None:
        self.endpoint, self.results, self.before = endpoint, results, before
        self.version = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def __enter__(self) -> "Recording":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=10)

    def _play(self) -> None:
        with BufferClient(self.endpoint, name="recording") as client:
            while not self._end.is_set():
                self.version = max(self.version, client.stats().learner_version)
                lease = client.lease("recording", self.version, GroupPlan(2, 2))
                if not isinstance(lease, Lease):
                    time.sleep(0.02)
                    continue
                self.before(lease)
                slots = {"base": lease.plan.base, "distilled": lease.plan.distilled}
                for result in self.results(lease.group_id, self.version):
                    if result.slot < slots[result.role]:
                        client.put(lease.group_id, "recording", result)
