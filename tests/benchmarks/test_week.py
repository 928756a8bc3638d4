"""A week: growth within the lives of processes, and the figure."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import week


def line(step: int, mib: float, pid: int = 7, begun: int = 0) -> dict[str, Any]:
    each = {"pid": pid, "anonymous": round(mib * 1024), "files": 5, "threads": step // 1000}
    disk = dict.fromkeys(week.DISK, step)
    return {"begun": begun, "step": step, "disk": disk, "processes": {"learner": [each]}}


def test_growth_counts_within_one_process_and_after_its_start() -> None:
    lines = [line(step, 900 if step < 500 else 100 + step / 100) for step in range(0, 3000, 50)]
    lines += [line(step, 50, pid=8, begun=1) for step in range(3000, 5000, 50)]
    assert week.growth(lines, "learner", "anonymous", 500) == pytest.approx([10 * 1024, 0], abs=1)
    assert week.growth(lines, "engine", "anonymous", 500) == []
    (row,) = [text for text in week.table(lines, 500) if "learner" in text]
    assert "+10.0, +0.0" in row


def test_the_figure_is_drawn_and_the_newest_step_is_read(tmp_path: Path) -> None:
    week.draw([line(1, 1.0), line(2, 2.0), line(3, 1.0, begun=1)], tmp_path / "week.svg")
    assert "open files" in (tmp_path / "week.svg").read_text()
    assert week.reached(tmp_path) == 0
    (tmp_path / "progress.jsonl").write_text('{"kind": "step", "step": 7}\n{"kind": "ev')
    assert week.reached(tmp_path) == 7


def test_a_process_is_measured() -> None:
    own = week.measure(psutil.Process())
    assert own["rss"] >= own["anonymous"] > 0 and own["files"] > 0 and own["threads"] > 0
