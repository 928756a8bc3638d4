"""What is trained is said in one phrase, by the numbers of the calls."""

from actors.agents.trained_calls import asked_words, trained_words
from r3l.views.tape import TapedCall


def calls(*untrained: str) -> list[TapedCall]:
    return [TapedCall("chat", "d", -1, (), trained=not why, untrained=why) for why in untrained]


def test_the_calls_that_are_trained_are_named_and_the_others_with_their_reasons() -> None:
    assert trained_words(calls("", "side"), "main") == (
        "trained: call 0 of 2 (actor.agent.train=main); not call 1: it is not in the main "
        "conversation"
    )
    assert trained_words(calls("", ""), "all") == "trained: all 2 calls (actor.agent.train=all)"
    assert trained_words(calls(""), "all") == "trained: call 0 of 1 (actor.agent.train=all)"
    many = calls("", "", "", "grammar", "", "unseen", "grammar")
    assert trained_words(many, "all") == (
        "trained: calls 0–2, 4 of 7 (actor.agent.train=all); not calls 3, 6: a grammar shaped it; "
        "not call 5: the agent did not receive it"
    )
    assert trained_words(calls("grammar"), "all").startswith("trained: no call (")


def test_calls_to_other_models_do_not_count() -> None:
    other = TapedCall("chat", "d", -1, (), trained=False, model="gpt-5")
    assert "call 0 of 1" in trained_words([*calls(""), other], "all")


def test_a_second_model_is_named_with_what_to_do() -> None:
    assert asked_words({"gpt-4o"}) == "models asked: gpt-4o"
    assert asked_words(set()) == "models asked: none that is trained"
    both = asked_words({"policy", "gpt-4o-mini"})
    assert both.startswith("models asked: gpt-4o-mini, policy; ")
    assert "say what gpt-4o-mini may be with actor.agent.models" in both
