"""Keeps a run's bill: adds up what its processes report, and compares it with the budget."""

import time
from collections.abc import Mapping
from uuid import uuid4

from buffer import BufferStats
from learner.metrics.group_metrics import Metrics
from r3l.notices import notice_again
from r3l.run import bill
from r3l.run.bill import Usage
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import RunFolder
from r3l.run.process.cpu_time import age_s, cpu_seconds

WRITE_S = 10.0


class BillKeeper:
    """Keeps `bill.json` from rank 0. `gpus`: the number of GPUs of all ranks. `served`: whether the
    buffer is a process of its own, rather than a thread of this one."""

    def __init__(
        self, folder: RunFolder, config: RunConfig, *, gpus: int = 0, served: bool = True
    ) -> None:
        self.folder, self.config = folder, config
        self.gpus, self.served = gpus, served
        self.processes = folder.bill()
        self._name = f"learner.{uuid4().hex[:8]}"
        self._trained = self._ranks_cpu_s = 0.0
        self._written = -WRITE_S

    def add_step(self, metrics: Mapping[str, float]) -> None:
        """Adds what the ranks used for a step, whether or not it was applied."""
        self._trained += metrics.get("learner/held_tokens", 0.0)
        self._ranks_cpu_s = metrics.get("learner/cpu_s", 0.0)

    def update(self, stats: BufferStats, *, write: bool = False) -> Metrics:
        """Adds what the processes report now. Returns the bill's metrics. Writes the bill; without
        `write`, at most once in WRITE_S."""
        for name, numbers in stats.actors.items():
            self._set(name, Usage(
                sampled=numbers.get("generated_tokens", 0.0),
                read=numbers.get("prompt_tokens", 0.0),
                cpu_s=numbers.get("cpu_s", 0.0),
                gpu_s=numbers.get("gpu_s", 0.0),
            ))  # fmt: skip
        if self.served:
            self._set(f"buffer.{stats.started:.0f}", Usage(cpu_s=stats.cpu_s))
        wall_s, cpu_s = age_s(), max(cpu_seconds(), self._ranks_cpu_s)
        own = Usage(trained=self._trained, cpu_s=cpu_s, gpu_s=self.gpus * wall_s, wall_s=wall_s)
        self._set(self._name, own)
        if write or time.monotonic() - self._written >= WRITE_S:
            self._write()
        return bill.metrics(self.used, self.config.cost)

    @property
    def used(self) -> Usage:
        """What the run has used so far, with all its restarts and earlier launches."""
        return bill.total(self.processes.values())

    @property
    def spent(self) -> str:
        """Which limits of the budget are used up; "" if none is."""
        return bill.spent(self.used, self.config.budget, self.config.cost)

    def _write(self) -> None:
        self._written = time.monotonic()
        try:
            self.folder.write_bill(self.processes)
        except OSError as error:
            notice_again("bill.json", f"bill.json could not be written ({error}); training goes on")

    def _set(self, name: str, used: Usage) -> None:
        """Sets a process's entry. After a restart of the buffer, an actor may report less."""
        self.processes[name] = used.at_least(self.processes.get(name, Usage()))
