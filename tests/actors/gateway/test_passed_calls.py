"""Calls to other models and MCP servers as the tape keeps them; test_other_models.py makes some."""

import time

import pytest

from actors.gateway.passed_calls import LONGEST_KEPT, PassedCalls
from r3l.views.tape import WHOLE


@pytest.mark.parametrize(
    ("length", "finish", "recorded"),
    [
        (LONGEST_KEPT, WHOLE, WHOLE),
        (LONGEST_KEPT + 1, WHOLE, "cut"),
        (LONGEST_KEPT + 1, "429", "429"),
    ],
)
def test_a_call_is_recorded_with_its_time_and_cut(length: int, finish: str, recorded: str) -> None:
    passed, long = PassedCalls(time.monotonic() - 5.0), "x" * length
    reply = {"role": "assistant", "content": long, "finish": finish}
    passed.record("m", "chat", "hash", long, reply, time.monotonic() - 2.0)
    (call,) = passed.calls
    assert (call.model, call.finish, call.trained, call.parent) == ("m", recorded, False, -1)
    assert len(call.messages[0]["content"]) == len(call.reply["content"]) == LONGEST_KEPT
    assert call.began == pytest.approx(3.0, abs=1.0)
    assert call.seconds == pytest.approx(2.0, abs=1.0)


def test_a_repeated_call_took_no_time() -> None:
    passed = PassedCalls(time.monotonic() - 5.0)
    reply = {"role": "assistant", "content": "yes"}
    passed.record("m", "chat", "hash", "?", reply, time.monotonic() - 2.0)
    passed.repeat(passed.calls[0])
    first, again = passed.calls
    assert again.reply == first.reply and again.seconds == 0.0 and again.began > first.began
