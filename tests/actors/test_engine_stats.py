"""What the engine reports of its KV cache."""

from types import SimpleNamespace

from r3l.run.actor_metrics import ActorMetrics


def test_usage_is_the_latest_and_preemptions_add_up() -> None:
    from actors.engine_stats import CacheLogger

    metrics = ActorMetrics()
    logger = CacheLogger(metrics)
    for usage, preempted in ((0.5, 2), (0.25, 1)):
        logger.record(
            SimpleNamespace(kv_cache_usage=usage), SimpleNamespace(num_preempted_reqs=preempted)
        )
    logger.record(None, None, engine_idx=0)
    assert metrics == ActorMetrics(kv_cache_usage=0.25, preemptions=3)
