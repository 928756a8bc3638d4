"""The CPU time of a process and of all that it started."""

import subprocess
import sys
import time
from collections.abc import Hashable, Iterator, Mapping

import psutil
import pytest

from r3l.run.process import cpu_time
from r3l.run.process.cpu_time import CpuMeter, Times

BURN = "import time\nwhile time.process_time() < 0.3: pass\n"


def looks(*seen: Mapping[int, tuple[int, float, float]]) -> list[float]:
    """What a meter says after each look. `seen`: (parent, own, waited) of each process id."""
    given: Iterator[dict[Hashable, Times]] = (
        {pid: Times(pid, *times) for pid, times in look.items()} for look in seen
    )
    meter = CpuMeter(lambda: next(given))
    return [round(meter.seconds(newest=True), 3) for _ in seen]


def test_a_child_counts_while_it_runs_and_after_it_was_waited_for() -> None:
    meter = CpuMeter()
    before = meter.seconds()
    child = subprocess.Popen(
        [sys.executable, "-c", f"{BURN}print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    child.stdout.readline()
    running = meter.seconds(newest=True) - before
    assert running >= 0.28  # the kernel counts in hundredths
    child.communicate(b"\n")
    ended = [meter.seconds(newest=True) - before for _ in range(3)]
    assert running <= ended[0] <= ended[2] < running + 0.28, "counted once"


def test_a_child_that_ends_during_a_look_is_counted_once() -> None:
    alive, missed, seen = {1: (0, 1, 5), 2: (1, 3, 0)}, {1: (0, 1, 5)}, {1: (0, 1, 8.5)}
    assert looks(alive, missed, seen, seen) == [9, 9, 9.5, 9.5]
    assert looks(alive, seen, seen) == [9, 9.5, 9.5]


def test_a_process_that_nobody_waited_for_keeps_what_was_seen_of_it() -> None:
    alive, gone = {1: (0, 1, 5), 2: (1, 3, 0)}, {1: (0, 1, 5)}
    assert looks(alive, gone, gone, {1: (0, 1, 9)}) == [9, 9, 9, 13]
    assert looks(alive, {}, {3: (0, 1, 0)}) == [9, 9, 10]


def test_a_tree_that_ends_at_once_is_counted_once() -> None:
    whole = {1: (0, 1, 0), 2: (1, 2, 0), 3: (2, 4, 0), 4: (3, 8, 1)}
    assert looks(whole, {1: (0, 1, 0)}, {1: (0, 1, 15)}) == [16, 16, 16]
    assert looks(whole, {1: (0, 1, 0), 2: (1, 2, 13)}, {1: (0, 1, 16)}) == [16, 16, 17]


def test_an_id_that_is_used_again_is_another_process() -> None:
    seen = iter([{"first": Times(2, 1, 3, 0)}, {"second": Times(2, 1, 1, 0)}])
    meter = CpuMeter(lambda: next(seen))
    assert [meter.seconds(newest=True) for _ in range(2)] == [3, 4]


def test_the_processes_are_looked_at_only_every_few_seconds() -> None:
    seen = iter([{1: Times(1, 0, 3, 0)}, {1: Times(1, 0, 5, 0)}])
    meter = CpuMeter(lambda: next(seen))
    assert meter.seconds() == meter.seconds() == 3.0 and meter.seconds(newest=True) == 5.0


def test_this_process_has_used_time_since_it_started() -> None:
    assert cpu_time.cpu_seconds() >= 0.9 * sum(psutil.Process().cpu_times()[:2]) > 0


def test_the_age_does_not_follow_the_wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = cpu_time.age_s(), time.time()
    assert before == pytest.approx(real - psutil.Process().create_time(), abs=5)
    monkeypatch.setattr(time, "time", lambda: real + 86400)
    assert before <= cpu_time.age_s() < before + 3600


def test_a_process_stays_the_same_when_the_wall_clock_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = cpu_time.tree()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 0.0)
    assert cpu_time.tree().keys() == before.keys()
