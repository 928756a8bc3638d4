"""All processes are found, also one whose id another process had before."""

import subprocess
import sys

import psutil
import pytest

from launch.backends.run_keeper import KeptProcess
from r3l.run.process.process_list import every_process

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)", "do", "it"]


def test_a_process_with_the_id_of_an_ended_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(SLEEPS) as child:
        try:
            ended = psutil.Process(child.pid)
            ended._ident = (child.pid, 1.0)  # as it began at another time
            assert not ended.is_running()
            monkeypatch.setitem(psutil._pmap, child.pid, ended)  # what process_iter remembers
            assert child.pid in {p.pid for p in every_process() if p.is_running()}
            assert [p.pid for p in KeptProcess("c", None, worker=("do", "it")).workers()] == [
                child.pid
            ]
        finally:
            child.kill()
