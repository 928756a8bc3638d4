"""The load of the engine's KV cache, as vLLM's scheduler reports it to its loggers."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from actors.utilization import CacheLoad


class CacheLogger(StatLoggerBase):
    """Notes the scheduler's reports in `load`."""

    def __init__(self, load: CacheLoad) -> None:
        self.load = load

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Called after a step of the engine; each of the two may be None."""
        if scheduler_stats is not None:
            self.load.usage = float(scheduler_stats.kv_cache_usage)
        if iteration_stats is not None:
            self.load.preemptions += int(iteration_stats.num_preempted_reqs)

    def log_engine_initialized(self) -> None:
        """Nothing is said of it."""
