"""The groups of a run that learns from stored ones: through a real buffer service, in turns.

lease while admission grants ─► explore × leases at once ─► put ─► draw B ─► (train) ─┐
  ▲                                                                                   │
  └─────────────────────────────── commit ◄───────────────────────────────────────────┘
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
from envs import exploring, registry
from lab.results.taught import Guidance, taught
from r3l.records import Group
from r3l.rollout.exploration import Made
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
        env = config.env
        tasks = exploring.tasks(env.name, env.train_tasks, seed=config.seed, options=env.options)
        client.add_tasks(tasks)
        client.set_version(0)
        self.draw: Draw | None = None

    async def batch(self, policy: Policy, version: int) -> tuple[Draw, list[Group]]:
        """Returns the batch of step `version` + 1, and the groups that were explored for it."""
        explored: list[Group] = []
        for _ in range(ROUNDS):
            leases = self._leases(version)
            await asyncio.gather(*(self._explore(lease, policy) for lease in leases))
            explored += self.client.get([lease.group_id for lease in leases]) if leases else []
            self.draw = self.client.draw(self.config.learner.groups_per_step, version)
            if self.draw is not None:
                return self.draw, explored
        raise RuntimeError(f"step {version + 1}: no batch after {ROUNDS} rounds of exploration")

    def trained(self, version: int) -> None:
        """Commits the batch, whose step made `version`."""
        if self.draw is None:
            raise RuntimeError("nothing was drawn")
        self.client.commit(self.draw.draw_id, version, version)
        self.draw = None

    def _leases(self, version: int) -> list[Lease]:
        found = []
        while isinstance(reply := self.client.lease(ACTOR, version), Lease):
            found.append(reply)
        return found

    async def _explore(self, lease: Lease, policy: Policy) -> None:
        async def put(made: Made) -> Made:
            self.client.put(lease.group_id, ACTOR, made)
            return made

        make_env = partial(registry.make, self.config.env.name, **self.config.env.options)
        await exploring.explore(
            self.config.algorithm,
            lease.task,
            taught(policy, lease.task, make_env, self.teacher),
            make_env,
            plan=lease.plan,
            handed=lease.handed,
            decoding=self.config.actor.decoding(),
            emit=put,
        )


@contextmanager
def buffered(
    config: RunConfig, teacher: Guidance = "", store: Path | None = None
) -> Iterator[Buffered]:
    """Yields batches from a service of this run's configuration. `teacher`: whose reflections are
    used; `store`: folder of the store, which is removed afterwards if none is given."""
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
