"""The names of models that agents ask for are counted, and a second one is said once."""

import pytest

from actors.gateway import asked_names
from actors.gateway.asked_names import AskedNames
from r3l.run.config import load
from tests.actors.gateway.test_session import session_of
from tests.r3l.fakes import ScriptedPolicy


def test_a_second_name_of_which_nothing_is_decided_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(asked_names, "notice", said.append)
    names, policy = AskedNames(), ScriptedPolicy(lambda text: "yes")
    for asked, second in (
        (("gpt-4o", "gpt-4o"), 0),
        (("policy", "policy-untrained"), 0),
        (("gpt-4o", "policy-untrained"), 0),
        (("policy", "gpt-4o-mini", "policy", "gpt-4o-mini"), 1),
        (("policy", "gpt-4o-mini"), 1),
    ):
        session = session_of(policy)
        for name in asked:
            names.note(session, name)
        assert session.metrics.agent["second_models"] == second
        assert session.metrics.asked == {name: asked.count(name) for name in asked}
    (line,) = said
    assert "gpt-4o-mini and policy" in line
    setting = line.split("'")[1]
    assert setting == 'actor.agent.models={"gpt-4o-mini": policy}', "it can be pasted"
    assert load(None, [setting]).actor.agent.models["gpt-4o-mini"].url == "policy"


def test_whatever_agents_call_a_model_few_names_that_can_be_shown_are_counted() -> None:
    names, session = AskedNames(), session_of(ScriptedPolicy(lambda text: "yes"))
    for name in (*(f"m{n}" for n in range(50)), "a\nb\u200b" * 100):
        names.note(session, name)
    counted = session.metrics.asked
    assert len(counted) <= asked_names.MOST_NAMES + 1 and sum(counted.values()) == 51
    assert all(name.isprintable() and len(name) <= asked_names.LONGEST for name in counted)
    assert names._counted("policy") == "policy"
