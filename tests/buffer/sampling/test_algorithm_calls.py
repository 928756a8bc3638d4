"""Calls of the run's algorithm: what it decides, and what happens if it cannot."""

import time

import lmdb
import pytest

from buffer.sampling import algorithm_calls
from buffer.sampling.algorithm_calls import AlgorithmCalls
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.facts import GroupFacts
from r3l.algorithms.registry import REGISTRY
from r3l.errors import StoreError

FACTS = GroupFacts("t", (0.0, 1.0), (-1, -1))


class Mine(Algorithm):
    """A user's algorithm, since its module is not of r3l. `does`: what `admits` does."""

    def admits(self, group):
        return DOES[0](group)


DOES = [lambda group: ""]


@pytest.fixture
def calls(monkeypatch):
    """Calls of `Mine`, which may take a tenth of a second, and the notices about them."""
    said = []
    monkeypatch.setattr(algorithm_calls, "notice_again", lambda kind, line: said.append(line))
    monkeypatch.setattr(algorithm_calls, "LIMIT_S", 0.1)
    made = AlgorithmCalls(Mine(name="mine.py:Mine"))
    made.said = said
    return made


def admits(calls, does, check=str):
    DOES[0] = does
    return calls.call("admits", lambda ask: calls.algorithm.admits(FACTS), check)


def test_only_methods_that_differ_from_the_defaults_are_called():
    found = {
        name: [m for m in ("plan", "admits", "recalls") if AlgorithmCalls(kind()).overrides(m)]
        for name, kind in REGISTRY.items()
    }
    assert found["grpo"] == [] and found["dapo"] == ["admits"] and found["arpo"] == ["recalls"]
    assert AlgorithmCalls(Mine()).overrides("admits")


def test_a_decision_is_returned_and_calls_share_a_thread(calls):
    assert admits(calls, lambda group: f"{max(group.rewards)}") == "1.0"
    thread = calls._worker
    assert admits(calls, lambda group: "") == "" and calls._worker is thread
    assert not calls.said


def raises(group):
    raise KeyError("no such\nkey")


def leaves(group):
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("does", "said"),
    [(raises, "line 61; KeyError: 'no such"), (leaves, "SystemExit: 3")],
)
def test_a_method_that_raises_fails_and_is_named_with_its_line(calls, does, said):
    assert admits(calls, does) is None
    [line] = calls.said
    assert line.startswith("algorithm mine.py:Mine: admits failed in ") and said in line
    assert line.endswith("; its groups are trained on")
    assert admits(calls, lambda group: "") == ""


def test_a_decision_that_cannot_be_fails(calls):
    assert admits(calls, lambda group: "seven", int) is None
    assert "admits failed; ValueError: invalid literal" in calls.said[0]


def hangs(group):
    while True:
        pass


@pytest.mark.parametrize("does", [hangs, lambda group: time.sleep(1.0)])
def test_a_method_that_hangs_fails_in_time_and_rests_before_it_is_called_again(calls, does):
    began = time.monotonic()
    assert admits(calls, does) is None and time.monotonic() - began < 0.8
    assert "TimeoutError: took longer than 0.1 s" in calls.said[0]
    assert admits(calls, lambda group: pytest.fail("it was called")) is None
    assert len(calls.said) == 1 and calls._worker is None
    calls._rests_until["admits"] -= algorithm_calls.REST * 0.1
    assert admits(calls, lambda group: "") == ""


def test_one_method_rests_without_the_others(calls):
    admits(calls, hangs)
    assert calls.call("plan", lambda ask: 3, int) == 3


@pytest.mark.parametrize("error", [StoreError("damaged"), lmdb.Error("a torn page")])
@pytest.mark.parametrize("kind", [Mine, REGISTRY["dapo"]])
def test_an_error_of_the_store_is_not_the_algorithms(calls, kind, error):
    def read():
        raise error

    calls = AlgorithmCalls(kind())
    with pytest.raises(type(error)):
        calls.call("admits", lambda ask: ask(read), str)
    with pytest.raises(type(error)):
        calls.call("admits", lambda ask: "", lambda value: read())
    assert calls.call("admits", lambda ask: ask(lambda: "read"), str) == "read"


def test_methods_of_r3l_are_called_without_another_thread(calls):
    own = AlgorithmCalls(REGISTRY["dapo"]())
    assert own.call("admits", lambda ask: own.algorithm.admits(FACTS), str) == ""
    assert own.call("admits", lambda ask: 1 / 0, str) is None
    assert own._worker is None and "ZeroDivisionError" in calls.said[0]
