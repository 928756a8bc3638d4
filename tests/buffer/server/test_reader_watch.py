"""A process with a long-lived read transaction is found and named."""

import logging
import os
import subprocess
import sys

import pytest

from buffer.server.reader_watch import WARN_S, ReaderWatch

LOOK = """
import sys
from pathlib import Path
from buffer.storage.store import Store
store = Store(Path(sys.argv[1]), read_only=True)
with store.read():
    print("looking", flush=True)
    sys.stdin.read()
"""


@pytest.mark.system
def test_a_read_transaction_of_another_process_is_aged_and_named_in_the_log(desk, tasks, caplog):
    desk.add(tasks(1))
    watch = ReaderWatch(desk.store)
    watch.update(0.0)
    assert watch.oldest_s(5.0) == 0.0
    command = [sys.executable, "-c", LOOK, str(desk.folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "looking\n"
        desk.add(tasks(1, "u"))
        watch.update(10.0)
        assert watch.oldest_s(25.0) == 15.0
        with caplog.at_level(logging.WARNING):
            for now in (WARN_S, WARN_S + 10.0, WARN_S + 20.0):
                watch.update(now)
        assert len(caplog.records) == 1 and f"process {other.pid} " in caplog.text
        other.stdin.close()
        other.wait(timeout=120)
    watch.update(WARN_S + 30.0)
    assert watch.oldest_s(WARN_S + 40.0) == 0.0


@pytest.mark.system
def test_a_read_transaction_of_a_killed_process_keeps_no_pages(desk, tasks):
    desk.add(tasks(1))
    watch = ReaderWatch(desk.store)
    command = [sys.executable, "-c", LOOK, str(desk.folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "looking\n"
        watch.update(1.0)
        assert watch.oldest_s(5.0) == 4.0
        other.kill()
        other.wait(timeout=120)
    watch.update(10.0)
    assert watch.oldest_s(20.0) == 0.0


def test_a_read_transaction_of_this_process_counts_too(desk):
    watch = ReaderWatch(desk.store)
    with desk.store.read():
        watch.update(1.0)
        assert desk.store.readers()[0][0] == os.getpid()
    watch.update(2.0)
    assert desk.store.readers() == [] and watch.oldest_s(3.0) == 0.0
