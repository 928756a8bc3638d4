"""Sessions of servers that are full, slow, away or gone."""

import threading
import time
from typing import Any

import pytest

from envs.adapters.openenv.server_session import OpenEnvSession
from r3l.errors import EnvironmentFailed


@pytest.fixture
def opened(serve: Any) -> Any:
    made, name = serve()
    return made, OpenEnvSession(name, name.removeprefix("openenv:"), 2.0)


def cause_of(call: Any, *arguments: Any) -> tuple[str, str]:
    with pytest.raises(EnvironmentFailed) as failed:
        call(*arguments)
    assert "\n" not in str(failed.value)
    return failed.value.cause, str(failed.value)


def test_a_reset_that_fails_closes_the_session(opened: Any) -> None:
    _, session = opened
    cause, why = cause_of(session.begin, "reset", {"broken": True})
    assert cause == "openenv_error" and why.endswith("reset: EXECUTION_ERROR: it is broken")
    assert session.socket is None


def test_a_silent_server_fails_the_call_and_its_late_answer_is_never_read(opened: Any) -> None:
    made, session = opened
    session.begin("reset", {"seed": 0})
    cause, why = cause_of(session.ask, "step", {"word": "silence"})
    assert cause == "openenv_timeout" and "no answer in 2 s (env option timeout_s)" in why
    made.silent.set()
    assert session.begin("reset", {"seed": 0})["observation"]["text"] == "Say red."
    session.close()


def test_a_session_that_ends_in_an_attempt_fails_it_and_the_next_reset_opens_one(
    opened: Any,
) -> None:
    made, session = opened
    made.hang_up = True
    session.begin("reset", {"seed": 0})
    cause, why = cause_of(session.ask, "step", {"word": "red"})
    assert cause == "openenv_lost" and "step: the server closed the session" in why
    cause, why = cause_of(session.ask, "step", {"word": "red"})
    assert cause == "openenv_lost" and "an attempt begins with a reset" in why
    session.begin("reset", {"seed": 0})
    made.hang_up = False
    assert session.begin("reset", {"seed": 1})["observation"]["text"] == "Say red."
    assert [message["data"] for message in made.asked if message["type"] == "reset"] == [
        {"seed": 0}, {"seed": 0}, {"seed": 1}
    ]  # fmt: skip
    session.close()


def test_a_full_server_is_asked_again_until_a_place_is_free(opened: Any) -> None:
    made, session = opened
    made.most = 0
    cause, why = cause_of(session.begin, "reset", {"seed": 0})
    assert cause == "openenv_full" and "(it allows 0)" in why
    session.timeout_s = 30.0
    free = threading.Timer(0.7, setattr, (made, "most", 1))
    free.start()
    assert session.begin("reset", {"seed": 0})["observation"]["text"] == "Say red."
    session.close()


def test_a_closed_session_has_given_its_place_back(opened: Any) -> None:
    made, session = opened
    made.most = 1
    for _ in range(3):
        session.begin("reset", {"seed": 0})
        session.close()
        session.close()
    assert made.asked[-1] == {"type": "close"} and made.open == 0


@pytest.mark.parametrize("status", [500, 404])
def test_a_server_that_opens_no_session_is_lost_after_the_time_limit(
    opened: Any, status: int
) -> None:
    made, session = opened
    made.pages["/ws"] = status
    session.timeout_s = 0.6
    began = time.monotonic()
    cause, why = cause_of(session.begin, "reset", {"seed": 0})
    assert cause == "openenv_lost" and f"HTTP {status}" in why
    assert time.monotonic() - began < 30


def test_a_server_that_is_away_is_lost() -> None:
    session = OpenEnvSession("openenv:x", "http://127.0.0.1:1", 0.1)
    cause, why = cause_of(session.begin, "reset", {"seed": 0})
    assert cause == "openenv_lost" and "no connection to the server in 0.1 s" in why


def test_a_surplus_answer_ends_the_connection_and_shifts_no_later_one(opened: Any) -> None:
    made, session = opened
    session.begin("reset", {"seed": 0})
    made.twice = True
    session.ask("step", {"word": "no"})
    deadline = time.monotonic() + 20  # it may still be on its way
    while not session.socket.recv_messages.frames.qsize() and time.monotonic() < deadline:
        time.sleep(0.01)
    made.twice = False
    cause, why = cause_of(session.begin, "reset", {"seed": 1})
    assert cause == "openenv_answer" and "reset: the server had sent one more answer: " in why
    assert session.begin("reset", {"seed": 1})["observation"]["text"] == "Say red."
    session.close()


def test_an_answer_that_is_too_large_is_no_lost_connection(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envs.adapters.openenv.server_session.LARGEST", 1 << 20)
    made, session = opened
    made.say["reset"] = "x" * ((1 << 20) + 1)
    cause, why = cause_of(session.begin, "reset", {"seed": 0})
    assert cause == "openenv_answer" and "the answer is larger than 1 MiB" in why
