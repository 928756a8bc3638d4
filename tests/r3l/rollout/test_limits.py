"""Limits of time and memory of a part of the process."""

import resource
import threading
import time

import pytest

from r3l.rollout.limits import limited


def test_code_that_takes_too_long_or_too_much_is_stopped_and_the_limits_end_with_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(TimeoutError, match=r"took more than 0\.1 s"), limited(0.1, 1 << 30):
        while True:
            pass
    with pytest.raises(MemoryError), limited(60, 1 << 28):
        bytearray(1 << 29)
    assert len(bytearray(1 << 29)) == 1 << 29
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_code_that_only_waits_takes_no_cpu_time_but_wall_time() -> None:
    with limited(60, 1 << 30, cpu_s=0.1):
        time.sleep(0.5)
    with (
        pytest.raises(TimeoutError, match=r"took more than 0\.1 s of CPU time"),
        limited(60, 1 << 30, cpu_s=0.1),
    ):
        while True:
            pass
    with pytest.raises(TimeoutError, match=r"took more than 0\.5 s$"), limited(0.5, 1 << 30, 0.2):
        time.sleep(60)


def test_another_thread_has_a_limit_of_memory_alone() -> None:
    ended = []

    def work() -> None:
        with limited(0.01, 1 << 30):
            time.sleep(0.1)
        ended.append(True)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    assert ended == [True]
