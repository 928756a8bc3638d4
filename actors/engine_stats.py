"""Records what vLLM's scheduler reports about its KV cache."""

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from r3l.run.actor_metrics import ActorMetrics


class CacheLogger(StatLoggerBase):
    """Writes the scheduler's reports to `metrics`."""

    def __init__(self, metrics: ActorMetrics) -> None:
        self.metrics = metrics

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Records a step of the engine. `scheduler_stats` or `iteration_stats` may be None."""
        if scheduler_stats is not None:
            self.metrics.kv_cache_usage = float(scheduler_stats.kv_cache_usage)
        if iteration_stats is not None:
            self.metrics.preemptions += int(iteration_stats.num_preempted_reqs)

    def log_engine_initialized(self) -> None:
        """Does nothing."""
