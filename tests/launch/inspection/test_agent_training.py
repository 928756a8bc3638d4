"""What is trained of agents is said with the setting, and an alarm names the cause and a remedy."""

from itertools import accumulate
from typing import Any

import pytest

from launch.inspection.agent_training import (
    LOOKED_AT,
    AgentWatch,
    alarms,
    asked_words,
    trained_words,
)
from r3l.run.files.progress_lines import StepLine

TOKENS = {
    "agent/tokens_sampled": 1000.0,
    "agent/tokens_trained": 300.0,
    "agent/tokens_untrained_side": 600.0,
    "agent/tokens_untrained_grammar": 100.0,
    "agent/trained_share": 0.3,
}


def steps(count: int, **more: Any) -> list[StepLine]:
    """Steps of actors whose counts grow by the same tokens in each step."""
    changed = TOKENS | {name.replace("__", "/"): value for name, value in more.items()}
    return [StepLine(n, {name: value * n for name, value in changed.items()})
            for n in range(1, count + 1)]  # fmt: skip


def test_the_share_of_the_trained_tokens_is_said_with_the_reasons() -> None:
    assert trained_words(TOKENS, "main") == (
        "trained: 30% of the sampled tokens (actor.agent.train=main); not trained: 60% it is not "
        "in the main conversation, 10% a grammar shaped it"
    )
    assert trained_words({}, "all") == ""
    assert asked_words({"agent/asked_policy": 3.0, "agent/asked_gpt": 1200.0}) == (
        "gpt 1,200, policy 3"
    )


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("side", "actor.agent.train=all"),
        ("grammar", "warmup"),
        ("missed", "warmup"),
        ("unseen", "wait longer"),
        ("other", "r3l-agent check"),
    ],
)
def test_an_alarm_names_why_less_than_half_of_the_tokens_is_trained(why: str, remedy: str) -> None:
    bad = steps(LOOKED_AT + 1, **{f"agent__tokens_untrained_{why}": 900.0})
    (alarm,) = alarms(bad)
    assert "of their sampled tokens are trained" in alarm.what and remedy in alarm.remedy
    assert not alarms(bad[1:]) and not alarms([StepLine(n) for n in range(2 * LOOKED_AT)])
    assert not alarms(steps(LOOKED_AT + 1, agent__tokens_trained=700.0))


def test_only_the_last_steps_count_and_not_what_is_asked_not_to_be_trained() -> None:
    better = [
        StepLine(n, {"agent/tokens_trained": 1000.0 * n, "agent/tokens_untrained_missed": 99_000.0,
                     "agent/trained_share": n / (n + 99)})
        for n in range(1, 9)
    ]  # fmt: skip
    assert not alarms(better), "all tokens of the last steps are trained"
    user = [
        StepLine(n, {"agent/tokens_trained": 350.0 * n, "agent/tokens_untrained_asked": 650.0 * n,
                     "agent/trained_share": 0.35})
        for n in range(1, 9)
    ]  # fmt: skip
    assert not alarms(user), "a simulated user's turns"
    again = [*steps(9), *steps(1)]
    assert not alarms(again), "the actors' counts begin again"


def test_an_alarm_names_a_second_model_at_once() -> None:
    names = {"agent__asked_policy": 9.0, "agent__asked_gpt-4o-mini": 3.0,
             "agent__asked_policy-untrained": 4.0, "agent__second_models": 1.0}  # fmt: skip
    (alarm,) = alarms(steps(1, **names))
    assert "policy (9 calls), gpt-4o-mini (3 calls)" in alarm.what
    assert "actor.agent.models" in alarm.remedy and "untrained (" not in alarm.what


def test_an_alarm_is_said_when_it_appears_and_when_it_comes_back() -> None:
    watch = AgentWatch()
    rates = [0.3] * 12 + [1.0] * 12 + [0.3] * 12
    trained = list(accumulate(rates))
    counts = [
        {"agent/tokens_trained": done, "agent/tokens_untrained_side": n - done}
        for n, done in enumerate(trained, 1)
    ]
    said = [line for n, own in enumerate(counts) for line in watch.lines(StepLine(n, own))]
    assert len(said) == 2 and said[0].startswith("agents: 30% of their"), said
