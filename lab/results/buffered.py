"""The groups of a run that learns from stored ones: through a real buffer service, in turns.

lease while admission grants ─► explore_group × leases at once ─► put ─► draw B ─► (train) ─┐
  ▲                                                                                         │
  └───────────────────────────────── commit ◄───────────────────────────────────────────────┘
"""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from buffer import BufferClient, Draw, Lease
from envs.registry import make, task_source
from lab.results.taught import Guidance, taught
from learner.step.batch import Row
from learner.step.trainer import Trainer
from r3l.records import Group, SlotResult
from r3l.rollout.group import explore_group
from r3l.rollout.policy_interface import Policy
from r3l.run import config as configuration
from r3l.run.config import RunConfig

ACTOR = "actor"
ROUNDS = 1000
"""Rounds of exploration for one step at most, while groups are dropped or replaced."""


class Buffered:
    """Batches from a buffer service, whose actor and learner are this process."""

    def __init__(self, client: BufferClient, config: RunConfig, teacher: Guidance) -> None:
        self.client, self.config, self.teacher = client, config, teacher
        self.algorithm = config.algorithm.build()
        source = task_source(config.env.name, **config.env.options)
        client.add_tasks(source.tasks("train", config.env.train_tasks, config.seed))
        client.set_version(0)
        self.draw: Draw | None = None

    async def batch(
        self, policy: Policy, version: int, trainer: Trainer
    ) -> tuple[list[Row], list[Group]]:
        """The rows of step `version` + 1, and the groups that were explored for it."""
        explored: list[Group] = []
        for _ in range(ROUNDS):
            leases = self._leases(version)
            await asyncio.gather(*(self._explore(lease, policy) for lease in leases))
            explored += self.client.get([lease.group_id for lease in leases]) if leases else []
            self.draw = self.client.draw(self.config.learner.groups_per_step, version)
            if self.draw is not None:
                return trainer.rows(self.draw), explored
        raise RuntimeError(f"step {version + 1}: no batch after {ROUNDS} rounds of exploration")

    def trained(self, version: int) -> None:
        """The batch was trained, which made `version`."""
        if self.draw is None:
            raise RuntimeError("nothing was drawn")
        self.client.commit(self.draw.draw_id, version, version)
        self.draw = None

    def _leases(self, version: int) -> list[Lease]:
        found = []
        plan = self.algorithm.plan()
        while isinstance(reply := self.client.lease(ACTOR, version, plan), Lease):
            found.append(reply)
        return found

    async def _explore(self, lease: Lease, policy: Policy) -> None:
        async def put(result: SlotResult) -> SlotResult:
            self.client.put(lease.group_id, ACTOR, result)
            return result

        make_env = partial(make, self.config.env.name, **self.config.env.options)
        await explore_group(
            lease.task,
            taught(policy, lease.task, make_env, self.teacher),
            make_env,
            self.config,
            plan=lease.plan,
            accepted=lease.accepted,
            emit=put,
        )


@contextmanager
def buffered(
    config: RunConfig, teacher: Guidance = "", store: Path | None = None
) -> Iterator[Buffered]:
    """Batches from a service of this run's configuration. `teacher`: whose reflections
    are used; `store`: folder of the store, which is removed afterwards if none is given."""
    with tempfile.TemporaryDirectory(prefix="r3l-results-") as folder:
        file = Path(folder, "config.yaml")
        file.write_text(configuration.dump(config), encoding="utf-8")
        command = [sys.executable, "-m", "buffer.cli", "serve", "--config", str(file)]
        command += ["--store", str(store or Path(folder, "store")), "--bind", "tcp://127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
            try:
                yield from _connected(service, config, teacher)
            finally:
                service.terminate()


def _connected(
    service: subprocess.Popen[str], config: RunConfig, teacher: Guidance
) -> Iterator[Buffered]:
    line = service.stdout.readline() if service.stdout else ""
    if not line:
        raise RuntimeError("the buffer service did not start; see above")
    with BufferClient(line.split()[-1], name="results", timeout_s=60) as client:
        yield Buffered(client, config, teacher)
