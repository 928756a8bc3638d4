"""A worker's sessions and its answers, inside the test's own process."""

import io

import numpy as np
import pytest

from envs.isolation import worker
from envs.isolation.worker import Sessions, read, serve
from r3l.codec import pack
from r3l.errors import EnvironmentFailed
from tests.envs.isolation.faulty import FAULTY


@pytest.fixture
def sessions(monkeypatch):
    """Sessions of the faulty environment; the memory limit is noted, not set."""
    limits = []
    monkeypatch.setattr(worker.resource, "setrlimit", lambda *limit: limits.append(limit))
    found = Sessions()
    said = found.hello(FAULTY, {}, 256)
    assert said["spec"]["name"] == "faulty" and "snapshot" in said["offers"]
    assert "demonstration" not in said["offers"]
    assert limits == [(worker.resource.RLIMIT_DATA, (256 << 20, 256 << 20))]
    return found


def step(sessions, session, action):
    return sessions.call(session, "step", [action])["value"]


def test_sessions_are_apart_and_the_environment_of_a_closed_one_serves_the_next(sessions):
    for session in (1, 2):
        sessions.call(session, "reset", [session, None])
    assert step(sessions, 1, "go")[0] == "step 1"
    assert step(sessions, 1, "on")[0] == "step 2" and step(sessions, 2, "go")[0] == "step 1"
    env = sessions.held[1]
    sessions.close(1)
    sessions.call(3, "reset", [3, None])
    assert sessions.held[3] is env


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("raise", "environment_KeyError"),
        ("array", "bad_observation"),
        ("exit", "environment_SystemExit"),
    ],
)
def test_an_environment_that_failed_is_closed_with_its_session(sessions, action, cause):
    closed = []
    sessions.call(1, "reset", [1, None])
    env = sessions.held[1]
    env.close = lambda: closed.append(env)
    with pytest.raises(EnvironmentFailed) as caught:
        step(sessions, 1, action)
    assert caught.value.cause == cause
    sessions.close(1)
    assert closed == [env] and env not in sessions.free


def test_an_environment_for_one_attempt_is_closed_with_its_session(sessions):
    closed = []
    sessions.call(1, "reset", [1, None])
    env = sessions.held[1]
    env.once, env.close = True, lambda: closed.append(env)
    sessions.close(1)
    assert closed == [env] and env not in sessions.free


def test_an_answer_of_another_type_is_refused_by_name(sessions):
    sessions.call(1, "reset", [1, None])
    sessions.held[1].feedback = lambda: 3.5
    with pytest.raises(EnvironmentFailed, match="faulty: feedback returned float"):
        sessions.call(1, "feedback", [])


def served(sessions, *requests):
    """The answers to some requests, one after the other."""
    packed = [pack(request) for request in requests]
    asked = io.BytesIO(b"".join(len(each).to_bytes(4) + each for each in packed))
    said = io.BytesIO()
    serve(sessions, asked, said)
    said.seek(0)
    return list(iter(lambda: read(said), {}))


def call(method, *arguments):
    return {"op": "call", "session": 1, "method": method, "arguments": list(arguments)}


def test_a_failed_call_is_answered_by_name_and_the_next_request_is_served(sessions):
    failed, remark = served(sessions, call("step", "raise"), call("feedback"))
    assert failed["error"] == "EnvironmentFailed"
    assert failed["facts"]["cause"] == "environment_KeyError"
    assert remark == {"value": "1 said"}


def test_half_a_character_in_an_error_or_an_answer_fails_the_call_alone(sessions):
    sessions.call(1, "reset", [1, None])
    sessions.held[1].step = lambda action: {}["\ud83d"]
    sessions.held[1].feedback = lambda: np.str_("half \ud83d")
    raised, said = served(sessions, call("step", "go"), call("feedback"))
    assert raised["facts"]["cause"] == "environment_KeyError"
    assert said["facts"]["cause"] == "bad_feedback" and sessions.close(1) == {}


def test_a_worker_that_is_out_of_memory_says_so_and_ends(sessions, monkeypatch):
    def out_of_memory(**_):
        raise MemoryError

    monkeypatch.setattr(sessions, "call", out_of_memory)
    (last,) = served(sessions, call("feedback"), call("feedback"))
    assert last["facts"]["cause"] == "environment_memory"
