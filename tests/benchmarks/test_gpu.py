"""The GPU benchmark, on a CPU with tiny shapes: every job leaves its lines, failures included."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.jobs import JOBS
from benchmarks.gpu.lines import Lines, versions
from benchmarks.gpu.measures import MEASURES, Bench, run_job


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_line_keeps_what_is_common_and_five_digits_of_a_float(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines", {"card": "a"})
    lines.write({"x": 1.23456789, "y": {"z": [0.123456789]}, "n": 1234567})
    assert lines_of(lines.path) == [{"card": "a", "x": 1.2346, "y": {"z": [0.12346]}, "n": 1234567}]


def test_a_version_that_is_not_the_pinned_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.lines.metadata.version", lambda name: "0.1+cu130")
    assert versions()["torch"].startswith("0.1+cu130 (pinned: ")
    assert versions()["transformers"] == "0.1+cu130"


def test_a_measure_that_fails_or_comes_too_late_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bench: Bench) -> Any:
        yield {"first": 1}
        raise ValueError("out of\nluck")

    monkeypatch.setitem(MEASURES, "ways", broken)
    job, lines = JOBS["0.5b zero 2"], Lines(tmp_path / "lines")
    run_job(job, tmp_path, lines, 100.0, tiny=True)
    start, first, error = lines_of(lines.path)
    assert start["stage"] == 2 and first["first"] == 1
    assert error["error"] == "ValueError: out of luck"
    run_job(job, tmp_path, lines, -1.0, tiny=True)
    assert [line["error"] for line in lines_of(lines.path)[3:]] == ["no time was left"] * 2


@pytest.mark.system
def test_every_job_leaves_its_lines_on_a_cpu(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--lines", str(path)]
    subprocess.run(command, check=True, timeout=550)
    found = lines_of(path)
    assert not [line for line in found if "error" in line]
    made = {(line["job"], line["measure"]) for line in found}
    wanted = {(job.name, name) for job in JOBS.values() for name in job.measures}
    assert wanted - made == {(name, "out_of_memory") for name in ("1.5b zero 1", "1.5b zero 2")}
    by_format = {line["format"]: line for line in found if line["measure"] == "agreement"}
    assert by_format["float32"]["loss"] < 1e-5
    assert all(line["grad_norm"] < 1e-3 for line in found if line["measure"] == "resume")
