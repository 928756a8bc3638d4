"""What the engine reports of its KV cache."""

import asyncio
from types import SimpleNamespace

import pytest

from actors.engine import VLLMPolicy
from envs.builtin.policy import builtin_policy
from r3l.actor_metrics import ActorMetrics
from r3l.rollout.interfaces import SampleParams
from r3l.settings.actor import ActorConfig


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


@pytest.mark.system
def test_an_engine_whose_cache_is_too_small_counts_preemptions_and_finishes_all_responses() -> None:
    config = ActorConfig(  # 1024 tokens of KV
        max_model_len=512, engine={"kv_cache_memory_bytes": 4 << 20}
    )
    policy = VLLMPolicy.start(builtin_policy(), config)
    made = policy._params

    def longest(params: SampleParams, budget: int) -> object:
        sampling = made(params, budget)
        sampling.min_tokens = budget
        return sampling

    policy._params = longest  # type: ignore[method-assign]

    async def scenario() -> None:
        asked = SampleParams(max_tokens=200)
        sampling = asyncio.gather(*(policy.sample([9, 8, k], asked) for k in range(10, 22)))
        highest = 0.0
        while not sampling.done():
            highest = max(highest, policy.metrics.kv_cache_usage)
            await asyncio.sleep(0.001)
        assert [len(one.token_ids) for one in await sampling] == [200] * 12
        assert policy.metrics.preemptions > 0 and 0.9 < highest <= 1

    try:
        asyncio.run(scenario())
    finally:
        policy.close()
