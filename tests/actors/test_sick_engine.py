"""An engine whose results cannot be right: it is found out, named, and another one takes over."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engine import VLLMPolicy
from r3l.errors import EngineSick, RequestRefused, SickResult
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


class Grammatical:
    """An engine whose requests with a grammar fail; those without one fail if it is `sick`."""

    errored = False

    def __init__(self, *, sick: bool = False, silent: bool = False) -> None:
        self.sick, self.silent, self.asked = sick, silent, list[bool]()

    async def generate(self, policy: VLLMPolicy, params: SampleParams) -> Any:
        constrained = params.json_schema is not None
        self.asked.append(constrained)
        if constrained and self.silent:
            await asyncio.sleep(60)
        value = math.nan if constrained or self.sick else -0.5
        reply = SimpleNamespace(
            token_ids=[7], logprobs=[{7: SimpleNamespace(logprob=value)}], finish_reason="stop"
        )
        return SimpleNamespace(outputs=[reply], num_cached_tokens=0)


def sampled(engine: Grammatical, params: SampleParams, monkeypatch: pytest.MonkeyPatch) -> Any:
    policy = VLLMPolicy(engine, None, 100, timeout_s=0.2)  # type: ignore[arg-type]

    async def generate(token_ids: Any, params: SampleParams, budget: int) -> Any:
        return await engine.generate(policy, params)

    monkeypatch.setattr(policy, "_generate", generate)
    return asyncio.run(policy.sample([1, 2, 3], params))


SHAPED = SampleParams(8, json_schema={"type": "object"})


@pytest.mark.parametrize("silent", [False, True])
def test_a_grammar_that_an_engine_cannot_follow_fails_its_request_alone(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Grammatical(silent=silent)
    with pytest.raises(RequestRefused, match="works without it") as caught:
        sampled(engine, SHAPED, monkeypatch)
    assert caught.value.cause == "grammar_failed" and engine.asked == [True, False]
    assert sampled(engine, SampleParams(8), monkeypatch).token_ids == (7,)


def test_an_engine_that_is_sick_without_a_grammar_too_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for params in (SHAPED, SampleParams(8)):
        with pytest.raises(EngineSick) as caught:
            sampled(Grammatical(sick=True), params, monkeypatch)
        assert caught.value.cause == "logprobs_not_finite"


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
        async def lease(self, *_: Any, **__: Any) -> Any:
            raise SickResult("policy version 9 does not exist yet", cause="version_future")

    async def scenario() -> None:
        async with acting(Engine(), Refusing(groups=1), requests=4) as actor:
            with pytest.raises(EngineSick) as caught:
                await actor.run()
        assert caught.value.cause == "version_future"
        assert actor.metrics.engines_sick == {"version_future": 1}

    asyncio.run(scenario())
