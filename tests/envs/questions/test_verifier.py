"""The verifier's processes: time limits, deaths, threads."""

import os
import signal
import threading
import time

import pytest

from envs.questions import verifier as verifiers
from r3l.errors import EnvironmentFailed


def test_an_answer_that_never_ends_costs_its_worker_and_nothing_else(verifier, monkeypatch):
    assert verifier.check("2", "2") == "correct"
    monkeypatch.setattr(verifier, "cpu_s", 0.5)
    assert verifier.check("2", "9^{9^{9^{9}}}") == "timeout"
    monkeypatch.undo()
    assert verifier.check("2", "1 + 1") == "correct"


def test_a_worker_that_is_killed_is_replaced(verifier):
    verifier.check("2", "2")
    os.kill(verifier.process.pid, signal.SIGKILL)
    assert verifier.check("2", "2") == "correct"


def test_a_reference_that_cannot_be_read_fails_the_attempt_by_name(verifier):
    with pytest.raises(EnvironmentFailed) as caught:
        verifier.check("", "2")
    assert caught.value.cause == "unreadable_reference"


def test_threads_take_turns(verifier):
    verdicts = {}
    threads = [
        threading.Thread(
            target=lambda n=n: verdicts.update({n: verifier.check(str(n), f"{n}.0")}), daemon=True
        )
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert verdicts == dict.fromkeys(range(20), "correct")


FAULTY = f"""
import sys, time
sys.path.insert(0, {str(verifiers.ROOT)!r})
from envs.questions import verifier_worker
def compare(gold, answer):
    if answer == "exit":
        raise SystemExit
    if answer == "hog":
        bytearray(4 << 30)
    if answer == "hang":
        time.sleep(1000)
    return "correct"
verifier_worker.compare, verifier_worker.HANG_S = compare, 2
verifier_worker.main()
"""
"""A worker whose comparisons leave the process, fill the memory or hang."""


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.setattr(verifiers, "WORKER", FAULTY)
    made = verifiers.Verifier()
    yield made
    made.close()


@pytest.mark.parametrize(("answer", "verdict"), [("exit", "crash"), ("hog", "crash")])
def test_a_comparison_that_ends_its_process_is_a_verdict(faulty, answer, verdict):
    assert faulty.check("2", answer) == verdict
    assert faulty.check("2", "2") == "correct"


@pytest.mark.parametrize("stopped", [False, True])
def test_a_comparison_that_hangs_has_a_deadline(faulty, stopped, monkeypatch):
    assert faulty.check("2", "2") == "correct"
    monkeypatch.setattr(verifiers, "SILENT_S", 0.5)
    if stopped:
        os.kill(faulty.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert faulty.check("2", "2" if stopped else "hang") == "timeout"
    assert time.monotonic() - began < 30


def test_a_worker_that_hangs_ends_by_itself_if_its_parent_cannot_end_it(faulty):
    assert faulty.check("2", "2") == "correct"
    process = faulty.process
    process.stdin.write(b'{"gold": "2", "answer": "hang", "cpu_s": 100}\n')
    process.stdin.flush()
    assert process.wait(20) == -signal.SIGALRM


def test_a_worker_that_does_not_start_fails_the_attempt_by_name(monkeypatch):
    monkeypatch.setattr(verifiers, "WORKER", "raise SystemExit(3)")
    with pytest.raises(EnvironmentFailed, match="exit code 3") as caught:
        verifiers.Verifier().check("2", "2")
    assert caught.value.cause == "verifier_start"


def test_the_shared_verifier_ends_with_its_last_user_and_starts_again_for_the_next():
    pytest.importorskip("math_verify")
    shared = verifiers.Verifier()
    verifier = shared.acquire()
    assert shared.acquire() is verifier and verifier.check("2", "2") == "correct"
    process = verifier.process
    shared.release()
    assert process.poll() is None
    shared.release()
    assert process.poll() is not None
    assert shared.acquire().check("2", "3") == "wrong"
    shared.release()
