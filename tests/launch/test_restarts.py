"""Which processes are started again, and how often."""

import sys
from pathlib import Path

import pytest

from launch.backends.processes import Children, Command
from launch.restarts import Restarts
from tests.launch.fakes import reports, until


@pytest.fixture
def children(tmp_path: Path) -> Children:
    (tmp_path / "logs").mkdir()
    return Children(tmp_path / "logs")


def script(run: Path, end: str, *, ready: bool = True, name: str = "c") -> list[str]:
    """A process that reports that it is ready and then ends."""
    return [sys.executable, "-c", f"{reports(run, name) if ready else 'pass'}; {end}"]


def test_a_process_that_dies_again_within_an_hour_waits_longer_each_time(
    tmp_path: Path, children: Children
) -> None:
    restarts = Restarts({"c": 9})
    child = children.start("c", Command(script(tmp_path, "raise SystemExit(1)")))
    until(lambda: child.exit_code is not None)
    waits = []
    for death in range(8):
        assert restarts.allow(child, now=10.0 * death)
        waits.append(restarts.delay_s(child))
    assert waits == [0, 2, 4, 8, 16, 32, 60, 60]
    assert restarts.allow(child, now=9000.0) and restarts.delay_s(child) == 0


def test_a_full_disk_is_waited_for_and_uses_up_no_restart(
    tmp_path: Path, children: Children
) -> None:
    restarts, full = Restarts({"c": 1}), "raise OSError(28, 'No space left on device')"
    child = children.start("c", Command(script(tmp_path, full)))
    until(lambda: child.exit_code is not None)
    assert [restarts.allow(child, now=float(n)) for n in range(5)] == [True] * 5
    assert restarts.delay_s(child) == 60
    again = children.start(
        "c", Command(script(tmp_path, full, ready=False))
    )  # the disk is still full
    until(lambda: again.exit_code is not None)
    assert not again.ready and restarts.allow(again)
    assert not restarts.deaths["c"]


@pytest.mark.parametrize(
    ("code", "ready", "again"),
    [
        (1, True, [True, True, False]),
        (247, True, [True, True, False]),
        (0, True, [True, True, False]),
        (1, False, [False]),
        (2, True, [False]),
        (3, True, [False]),
        (4, False, [True] * 5),
        (5, False, [True] * 5),
    ],
)
def test_a_process_is_started_again_as_often_as_its_limit_and_its_exit_code_allow(
    tmp_path: Path, children: Children, code: int, ready: bool, again: list[bool]
) -> None:
    restarts = Restarts({"c": 2})
    child = children.start("c", Command(script(tmp_path, f"raise SystemExit({code})", ready=ready)))
    until(lambda: child.exit_code is not None)
    assert [restarts.allow(child, now=10.0 * i) for i in range(len(again))] == again
    other = children.start("other", Command(script(tmp_path, "pass", name="other")))
    until(lambda: other.exit_code is not None)
    assert not restarts.allow(other)


def test_deaths_long_ago_do_not_count(tmp_path: Path, children: Children) -> None:
    restarts = Restarts({"c": 1})
    child = children.start("c", Command(script(tmp_path, "raise SystemExit(1)")))
    until(lambda: child.exit_code is not None)
    assert restarts.allow(child, now=0.0)
    assert not restarts.allow(child, now=10.0)
    assert restarts.allow(child, now=9000.0)
