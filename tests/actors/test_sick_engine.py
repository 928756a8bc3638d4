"""An engine whose results cannot be right: it is found out, named, and another one takes over."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engine import VLLMPolicy
from r3l.errors import EngineSick, SickResult
from r3l.rollout.policy_interface import SampleParams
from tests.actors.test_actor import Buffer, Engine, acting, eventually


@pytest.mark.parametrize(
    ("logprob", "cause"),
    [(math.nan, "logprobs_not_finite"), (-math.inf, "logprobs_not_finite"),
     (0.5, "logprobs_positive")],
)  # fmt: skip
def test_a_response_with_impossible_log_probabilities_is_not_passed_on(
    logprob: float, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def token(value: float) -> dict[int, Any]:
        return {7: SimpleNamespace(logprob=value)}

    async def generate(*_: Any) -> Any:
        reply = SimpleNamespace(
            token_ids=[7, 7], logprobs=[token(-0.5), token(logprob)], finish_reason="stop"
        )
        return SimpleNamespace(outputs=[reply], num_cached_tokens=0)

    policy = VLLMPolicy(None, None, 100)  # type: ignore[arg-type]
    monkeypatch.setattr(policy, "_generate", generate)
    with pytest.raises(EngineSick) as caught:
        asyncio.run(policy.sample([1, 2, 3], SampleParams(8)))
    assert caught.value.cause == cause
    assert policy.metrics.requests_running == policy.metrics.generated_tokens == 0


def test_an_actor_whose_results_are_refused_as_sick_ends_with_the_symptom_and_reports_it() -> None:
    refusal = SickResult("policy version 9 does not exist yet; the newest is 4",
                         cause="version_future")  # fmt: skip

    class Refusing(Buffer):
        reported: dict[str, float]

        async def renew(self, groups: list[str], actor: str, metrics: Any) -> list[str]:
            self.reported = metrics
            return await super().renew(groups, actor, metrics)

    async def scenario() -> None:
        engine, buffer = Engine(), Refusing(groups=2, refusal=refusal)
        async with acting(engine, buffer, requests=64) as actor:
            running = asyncio.create_task(actor.run())
            await eventually(lambda: engine.metrics.requests_running == 4)
            buffer.slow.set()
            for _ in range(2 * 2 * 3):
                engine.replies.release()
            async with asyncio.timeout(60):
                with pytest.raises(EngineSick, match="9 does not exist yet"):
                    await running
        assert "g1" in buffer.released
        assert buffer.reported["engines_sick_version_future"] == 1.0
        assert all(result.status == "done" for _, result, _ in buffer.puts)

    asyncio.run(scenario())


def test_an_actor_at_a_version_of_the_future_ends_with_that_symptom() -> None:
    class Refusing(Buffer):
        async def lease(self, *_: Any) -> Any:
            raise SickResult("policy version 9 does not exist yet", cause="version_future")

    async def scenario() -> None:
        async with acting(Engine(), Refusing(groups=1), requests=4) as actor:
            with pytest.raises(EngineSick) as caught:
                await actor.run()
        assert caught.value.cause == "version_future"
        assert actor.metrics.engines_sick == {"version_future": 1}

    asyncio.run(scenario())
