"""The exact probability of the right answers, against literal numbers and against sampling."""

import asyncio
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from envs import registry
from r3l.errors import EngineDead, EngineFailed, EnvironmentFailed
from r3l.records import SlotResult, Task, done
from r3l.rollout.attempt import start
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_interface import EnvSpec
from r3l.rollout.policy_interface import SampleParams
from r3l.run.answer_probability import answer_probability, responses, with_exact
from r3l.training.local_policy import LocalPolicy
from tests.r3l.fakes import END, CharTokenizer
from tests.r3l.training.fakes import explore_group, uneven_model

CHAT = ChatFormat(CharTokenizer())
TASK = Task("t", "riddle", 7)
VOCABULARY = 256


class Riddle:
    """Asks for a letter; `listed` are its right answers."""

    def __init__(self, listed: Any = ("a",), **more: Any) -> None:
        self.listed = listed
        self.spec = EnvSpec(
            "riddle", "Answer.", **{"max_steps": 1, "max_response_tokens": 9} | more
        )

    def reset(self, *, seed: int, options: Any = None) -> tuple[str, dict[str, Any]]:
        return f"riddle {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", float(action in self.listed), True, False, {}

    def right_answers(self) -> Any:
        return self.listed() if callable(self.listed) else self.listed

    def close(self) -> None: ...


class Table:
    """A policy whose next token depends on the last one alone: `chances` of pairs of characters."""

    def __init__(self, chances: dict[str, float]) -> None:
        self.chat, self.chances = CHAT, chances
        self.prompts: list[str] = []

    async def score(self, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
        decode = self.chat.tokenizer.decode
        self.prompts.append(decode(token_ids[:start]))
        text = ["" if i == END else decode([i]) for i in token_ids]
        return tuple(math.log(self.chances[text[i - 1] + (text[i] or ".")])
                     for i in range(start, len(token_ids)))  # fmt: skip


def probability(policy: Any, env: Any, budget: int | None = None) -> float:
    return asyncio.run(answer_probability(TASK, policy, lambda: env, budget))


def test_probabilities_are_products_of_tokens_with_the_end_of_turn_summed_over_spellings() -> None:
    # Each response begins after a line end. "ab" must end, and so must its beginning "a".
    chances = {"\na": 0.5, "a.": 0.25, "ab": 0.5, "b.": 0.8, "\nA": 0.125, "A.": 0.5}
    policy = Table(chances)
    assert probability(policy, Riddle(["a"])) == pytest.approx(0.5 * 0.25)
    assert policy.prompts[0].endswith("riddle 7<|im_end|>\n<|im_start|>assistant\n")
    assert probability(policy, Riddle(["ab"])) == pytest.approx(0.5 * 0.5 * 0.8)
    every = 0.125 + 0.2 + 0.0625
    assert probability(policy, Riddle(["a", "ab", "A"])) == pytest.approx(every)
    assert probability(policy, Riddle(["a", "a", "ab", "A", "a"])) == pytest.approx(every)


def test_a_response_that_its_budget_cuts_off_needs_no_end_and_a_longer_one_cannot_be() -> None:
    policy = Table({"\na": 0.5, "a.": 0.25, "ab": 0.5, "b.": 0.8})
    assert probability(policy, Riddle(["ab"], max_response_tokens=2)) == 0.25
    assert probability(policy, Riddle(["ab"]), budget=2) == 0.25
    assert probability(policy, Riddle(["ab", "a"]), budget=1) == 0.5


def test_what_the_tokenizer_cannot_write_is_left_out() -> None:
    class Lower(CharTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
            return super().encode(text if "<|" in text else text.lower())

    lower = ChatFormat(Lower())
    assert responses(lower, ["ab", "Ab", "<|im_end|>", ""], 9) == [(*lower.encode("ab"), END)]


def tiny(zeroed: bool) -> LocalPolicy:
    model = uneven_model(VOCABULARY, 200)
    for parameter in model.parameters() if zeroed else ():
        parameter.zero_()
    return LocalPolicy((model, CHAT), seed=1)


def test_a_model_of_equal_logits_gives_every_token_its_share_of_the_vocabulary() -> None:
    env = Riddle(["abc", "d"])
    assert probability(tiny(zeroed=True), env) == pytest.approx(256.0**-4 + 256.0**-2)


def test_a_models_probability_is_that_of_its_softmax_computed_slowly() -> None:
    policy, env = tiny(zeroed=False), Riddle(["xy", "z"])
    attempt = asyncio.run(start(TASK, CHAT, env))
    prompt, total = [*attempt.read, *CHAT.prompt_ids], 0.0
    for answer in ("xy", "z"):
        ids, chance = list(prompt), 1.0
        for token in (*CHAT.encode(answer), END):
            logits = policy.model(torch.tensor([ids])).logits[0, -1].double()
            chance *= float(logits.softmax(-1)[token])
            ids.append(token)
        total += chance
    assert probability(policy, env) == pytest.approx(total, rel=1e-4)
    with pytest.raises(EngineFailed, match="do not fit the context"):
        asyncio.run(policy.score([5] * 201, 1))


def test_the_probability_is_the_frequency_with_which_the_answers_are_sampled() -> None:
    """With the shipped policy; 300 draws per task are within four standard deviations."""
    policy = LocalPolicy("builtin", seed=3)
    options = {"stations": 1, "steps": 1}
    for task in registry.tasks("workshop", options, "eval", 3):
        env = registry.make("workshop", **options)

        async def both(task: Task = task, env: Any = env) -> tuple[float, list[str]]:
            exact = await answer_probability(task, policy, lambda: env)
            attempt = await start(task, policy.chat, env)
            prompt = [*attempt.read, *policy.chat.prompt_ids]
            asked = (policy.sample(prompt, SampleParams(8)) for _ in range(300))
            return exact, [policy.chat.text(s.token_ids) for s in await asyncio.gather(*asked)]

        exact, said = asyncio.run(both())
        share = sum(text in env.right_answers() for text in said) / len(said)
        assert abs(share - exact) < 4 * math.sqrt(exact * (1 - exact) / len(said)) + 1e-9
        assert 0.02 < exact < 0.999, "else the comparison says nothing"


def attempt() -> SlotResult:
    return done(explore_group((1.0,), ()).trajectories[0])


def scored(policy: Any, env: Any) -> SlotResult:
    return asyncio.run(with_exact(attempt(), TASK, policy, lambda: env))


def test_an_attempt_keeps_the_probability_among_its_scores() -> None:
    result = scored(Table({"\na": 0.5, "a.": 0.25}), Riddle())
    assert result.trajectory is not None and result.trajectory.extra.scores == {
        "exact": pytest.approx(0.125)
    }
    failed = SlotResult(0, "failed", cause="environment_hang")
    assert asyncio.run(with_exact(failed, TASK, Table({}), Riddle)) is failed


class Failing(Table):
    def __init__(self, error: Exception) -> None:
        super().__init__({})
        self.error = error

    async def score(self, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
        raise self.error


@pytest.mark.parametrize(
    ("env", "cause"),
    [
        (Riddle([]), "no_answers"),
        (Riddle("a"), "bad_answers"),
        (Riddle([3]), "bad_answers"),
        (Riddle(["a\nb"], stop=["\n"]), "bad_answers"),
        (Riddle(lambda: 1 / 0), "environment_ZeroDivisionError"),
        (
            SimpleNamespace(spec=Riddle().spec, reset=Riddle().reset, close=lambda: None),
            "no_answers",
        ),
    ],
)
def test_what_cannot_be_computed_is_a_counted_fault_and_costs_no_attempt(
    env: Any, cause: str
) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        probability(Table({}), env)
    assert caught.value.cause == cause
    result = scored(Table({}), env)
    assert result.trajectory is not None and result.trajectory.faults[-1] == f"exact_{cause}"
    assert not result.trajectory.extra.scores


def test_an_engine_that_fails_a_request_is_a_fault_and_one_that_dies_ends_the_group() -> None:
    overflow = Failing(EngineFailed("too long", cause="context_overflow"))
    result = scored(overflow, Riddle())
    assert result.trajectory is not None
    assert result.trajectory.faults == ("exact_context_overflow",)
    with pytest.raises(EngineDead):
        scored(Failing(EngineDead("gone")), Riddle())
