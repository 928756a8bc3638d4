"""trackio with a folder of its own."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

WRITE = """
import sys
sys.path[:] = {path!r}
from pathlib import Path
from learner.metrics.loggers.trackio_logger import TrackioLogger
from learner.metrics.loggers.logger import LoggerContext
from r3l.run.config import load
config = load(None, ["learner.lr=0.25"])
logger = TrackioLogger(LoggerContext(Path({run!r}), config, target="reasoning"))
for version in {versions}:
    logger.scalars(version, {{"learner/loss": version / 2}})
logger.close()
"""


def test_the_local_folder_holds_metrics_over_two_lives(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="trackio is not installed (r3l[trackio])")
    run, folder = tmp_path / "first", tmp_path / "trackio"
    for versions in ([1, 2], [3]):  # its folder is chosen when it is imported
        code = WRITE.format(path=sys.path, run=str(run), versions=versions)
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TRACKIO_DIR": str(folder)}
        subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=300)
    (file,) = folder.glob("reasoning*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute(
            "SELECT run_id, run_name, step, metrics FROM metrics ORDER BY step"
        ).fetchall()
    found = [(name, step, json.loads(text)["learner/loss"]) for _, name, step, text in rows]
    assert found == [("first", 1, 0.5), ("first", 2, 1.0), ("first", 3, 1.5)]
    assert len({run for run, *_ in rows}) == 1  # continued
