"""Which processes are started again, and how often."""

import sys
from pathlib import Path

import pytest

from launch.backends.processes import Children
from launch.restarts import Restarts
from tests.launch.fakes import until


def test_a_process_that_dies_again_within_an_hour_waits_longer_each_time(tmp_path: Path) -> None:
    children, restarts = Children(tmp_path), Restarts({"c": 9})
    child = children.start("c", [sys.executable, "-c", "print('up'); raise SystemExit(1)"])
    until(lambda: child.exit_code is not None)
    waits = []
    for death in range(8):
        assert restarts.allow(child, "up", now=10.0 * death)
        waits.append(restarts.delay_s("c"))
    assert waits == [0, 2, 4, 8, 16, 32, 60, 60]
    assert restarts.allow(child, "up", now=9000.0) and restarts.delay_s("c") == 0
    assert restarts.delay_s("other") == 0


@pytest.mark.parametrize(
    ("code", "output", "again"),
    [
        (1, "up", [True, True, False]),
        (247, "up", [True, True, False]),
        (0, "up", [True, True, False]),
        (1, "", [False]),
        (2, "up", [False]),
        (3, "up", [False]),
        (4, "", [True] * 5),
        (5, "", [True] * 5),
    ],
)
def test_a_process_is_started_again_as_often_as_its_limit_and_its_exit_code_allow(
    tmp_path: Path, code: int, output: str, again: list[bool]
) -> None:
    children, restarts = Children(tmp_path), Restarts({"c": 2})
    child = children.start(
        "c", [sys.executable, "-c", f"print({output!r}); raise SystemExit({code})"]
    )
    until(lambda: child.exit_code is not None)
    assert [restarts.allow(child, "up", now=10.0 * i) for i in range(len(again))] == again
    other = children.start("other", [sys.executable, "-c", "print('up')"])
    until(lambda: other.exit_code is not None)
    assert not restarts.allow(other, "up")


def test_a_learner_is_started_again_however_much_it_wrote_since_it_was_ready(
    tmp_path: Path,
) -> None:
    children, restarts = Children(tmp_path), Restarts({"c": 1})
    talk = "print('ready'); print('line\\n' * 300_000); raise SystemExit(1)"
    child = children.start("c", [sys.executable, "-c", talk])
    until(lambda: child.exit_code is not None)
    assert child.last_lines(3)[:2] == ["line", "line"]
    assert restarts.allow(child, "ready")


def test_deaths_long_ago_do_not_count(tmp_path: Path) -> None:
    children, restarts = Children(tmp_path), Restarts({"c": 1})
    child = children.start("c", [sys.executable, "-c", "print('up'); raise SystemExit(1)"])
    until(lambda: child.exit_code is not None)
    assert restarts.allow(child, "up", now=0.0)
    assert not restarts.allow(child, "up", now=10.0)
    assert restarts.allow(child, "up", now=9000.0)
