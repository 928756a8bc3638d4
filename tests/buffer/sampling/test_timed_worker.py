"""A thread that carries out jobs for a limited time, and can be given up."""

import threading
import time
from contextlib import suppress

import pytest

from buffer.sampling.timed_worker import TimedWorker


def ended(thread, seconds=30.0):
    thread._thread.join(seconds)
    return not thread._thread.is_alive()


@pytest.fixture
def thread():
    thread = TimedWorker("test")
    yield thread
    thread.give_up()
    assert ended(thread)


def test_jobs_are_carried_out_one_after_the_other_in_another_thread(thread):
    places = [thread.run(lambda ask: threading.get_ident(), 30).value for _ in range(3)]
    assert len(set(places)) == 1 and places[0] != threading.get_ident()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_an_error_of_a_job_is_its_outcome_and_the_thread_goes_on(thread, error):
    def job(ask):
        raise error("x")

    assert isinstance(thread.run(job, 30).error, error)
    assert thread.run(lambda ask: 3, 30).value == 3


def test_what_a_job_asks_for_is_done_by_the_caller(thread):
    here = threading.get_ident()
    assert (
        thread.run(lambda ask: [ask(threading.get_ident) for _ in range(3)], 30).value == [here] * 3
    )


def test_what_a_job_was_given_cannot_be_asked_for_after_it(thread):
    kept = []
    thread.run(kept.append, 30)
    outcome = thread.run(lambda ask: kept[0](lambda: pytest.fail("it was carried out")), 30)
    assert isinstance(outcome.error, RuntimeError)


def test_an_error_of_what_a_job_asks_for_is_the_callers(thread):
    def read():
        raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        thread.run(lambda ask: ask(read), 30)


def _loops(ask):
    while True:
        pass


def _loops_whatever_is_raised(ask):
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        try:
            time.sleep(0.01)
        except BaseException:
            continue


def _asks_and_asks(ask):
    while True:
        ask(lambda: time.sleep(0.02))


@pytest.mark.parametrize(
    "job", [_loops, _loops_whatever_is_raised, _asks_and_asks, lambda ask: time.sleep(1.5)]
)
def test_a_job_that_takes_too_long_is_given_up_in_time_and_its_thread_ends(job):
    thread, began = TimedWorker("test"), time.monotonic()
    with pytest.raises(TimeoutError, match=r"longer than 0\.1 s"):
        thread.run(job, 0.1)
    assert time.monotonic() - began < 1.0
    thread.give_up()
    assert ended(thread)


def test_a_job_that_ends_as_its_time_does_never_hurts_its_caller():
    """The end of a job and the end of its time fall together, many times."""
    for number in range(300):
        thread = TimedWorker("test")
        limit_s = 0.002 + number % 7 * 1e-4
        until = time.monotonic() + limit_s

        def job(ask, until=until):
            while time.monotonic() < until:
                pass
            return "done"

        with suppress(TimeoutError):
            assert thread.run(job, limit_s).value == "done"
        thread.give_up()
        assert sum(range(100)) == 4950  # the caller goes on, untouched
    assert ended(thread)
