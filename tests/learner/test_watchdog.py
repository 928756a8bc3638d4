"""A learner that hangs ends itself, and says where: real processes, real hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from learner.exit_codes import EXIT_CODES, STACKS
from r3l.errors import LearnerHung
from r3l.run.files.run_folder import RunFolder
from tests.buffer.fakes import until
from tests.learner.fakes import (
    ROOT,
    Learning,
    Recording,
    buffer_options,
    prepare,
    steps_of,
    tiny_model,
)

PROGRAM = """
import sys, threading, time
from pathlib import Path
from learner.watchdog import Watchdog, heartbeat

def hung_helper():
    time.sleep(600)

with Watchdog(2.0, Path(sys.argv[1])):
    for number in range(6):
        heartbeat(f"piece {number}")
        time.sleep(0.5)
    print("worked for 3 s", flush=True)
    if sys.argv[2] == "hang":
        threading.Thread(target=hung_helper, daemon=True).start()
        sys.stderr.close()
        time.sleep(600)
print("done", flush=True)
"""


def started(folder: Path, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), what],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )


def test_a_process_that_hangs_ends_with_the_stack_of_every_thread(
    tmp_path: Path,
) -> None:
    process = started(tmp_path, "hang")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 6 and "worked for 3 s" in output and "done" not in output
    assert "\nr3l-learner hangs: rank 0 " in output and "no heartbeat for 2 s" in output
    assert "since it began piece 5" in output
    assert "in hung_helper" in output and 'File "<string>", line 17 in <module>' in output
    assert RunFolder(tmp_path).heartbeat().doing == "piece 5"


def test_a_process_with_heartbeats_keeps_running_and_shows_its_stacks_when_asked(
    tmp_path: Path,
) -> None:
    process = started(tmp_path, "work")
    until(lambda: RunFolder(tmp_path).heartbeat())
    os.kill(process.pid, STACKS)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "r3l-learner hangs" not in output
    assert 'File "<string>", line' in output and output.endswith("done\n")


@pytest.mark.system
def test_all_ranks_end_if_one_hangs_in_a_step(serve, tmp_path: Path) -> None:
    run = tmp_path / "run"
    prepare(run, tiny_model(tmp_path / "policy"), "learner.steps=2", "learner.checkpoint_every=1")
    served = serve(tmp_path / "store", *buffer_options())
    with Recording(served.endpoint):
        hanging = Learning(run, served.endpoint, ranks=2, module="tests.learner.hanging")
        assert hanging.wait() == EXIT_CODES[LearnerHung]
        log = (run / "learner.log").read_text()
        assert "r3l-learner hangs: rank 1" in log
        assert "tests/learner/hanging.py" in log and "in hang" in log
    assert [line["step"] for line in steps_of(run)] == [1]
