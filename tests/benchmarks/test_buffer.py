"""The benchmarks of the buffer: one command, and every sub-command runs to its end."""

import subprocess
import sys

import pytest


@pytest.mark.system
@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--rounds", "1", "--groups", "24"], "| r3l service | draw |"),
        (["throughput", "--rounds", "1", "--groups", "24"], "put / raw LMDB: "),
        (["peers", "--rounds", "1", "--calls", "24", "--peer", "nonsense"], "nonsense"),
        (["scale", "--small", "24", "--large", "48", "--rounds", "2"], "draw, median ms"),
        (["costs", "--groups", "0,20"], "20 complete groups, CPU ms: draw of 8, fifo "),
        (["large", "--mb", "3", "--groups", "20"], "a query without a match among 20 groups: "),
        (["load", "--minutes", "0.05"], '"lost": 0'),
    ],
)
def test_every_sub_command_prints_its_result(options: list[str], line: str) -> None:
    command = [sys.executable, "-m", "benchmarks.buffer", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout
