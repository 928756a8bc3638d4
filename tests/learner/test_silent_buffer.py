"""A learner whose buffer is stopped or slow waits for it: real processes, signals and LMDB."""

import signal
import time
from pathlib import Path

import pytest

from tests.buffer.fakes import Served, until
from tests.learner.fakes import (
    Learning,
    Recording,
    buffer_options,
    prepare,
    steps_of,
    tiny_model,
)

pytestmark = pytest.mark.system

LONG_S = 13.0
"""Longer than a client without patience waits, and than `tests.learner.impatient` allows a rank."""

SLOW = """
import contextlib, time
from pathlib import Path
from buffer.storage.store import Store

write = Store.write

@contextlib.contextmanager
def slowly(store):
    with write(store) as txn:
        yield txn
    while (store.folder / "slow").exists():  # a sync that does not end before the disk is well
        time.sleep(0.1)

Store.write = slowly
"""


def silence(served: Served, learner: Learning) -> None:
    """Stop the service for so long that its clients notice."""
    served.process.send_signal(signal.SIGSTOP)
    time.sleep(LONG_S)
    assert learner.process.poll() is None, learner.log()
    served.process.send_signal(signal.SIGCONT)


def said(learner: Learning, *words: str) -> bool:
    lines = (learner.run / "learner.log").read_text().splitlines()
    return any(all(word in line for word in words) for line in lines)


def test_a_learner_of_two_ranks_waits_for_a_stopped_buffer_at_its_start_and_in_a_step(
    serve, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    prepare(run, tiny_model(tmp_path / "policy"), "learner.steps=4")
    served = serve(tmp_path / "store", *buffer_options())
    with Recording(served.endpoint, timeout_s=120):
        served.process.send_signal(signal.SIGSTOP)
        learner = Learning(run, served.endpoint, ranks=2, module="tests.learner.impatient")
        until(lambda: said(learner, "r3l-learner ready") or learner.process.poll() is not None)
        silence(served, learner)
        assert said(learner, "learner waits for the buffer at", "no reply to"), learner.log()
        learner.wait_for_step(2)
        silence(served, learner)
        assert learner.wait() == 0, learner.log()
    assert [line["step"] for line in steps_of(run)] == [1, 2, 3, 4]
    assert said(learner, "replies again, after 1") and not (run / "hangs.jsonl").exists()


def test_a_learner_waits_for_a_buffer_whose_disk_takes_long_to_sync(serve, tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    prepare(run, tiny_model(tmp_path / "policy"), "learner.steps=3")
    served = serve(store, *buffer_options(), change=SLOW)
    with Recording(served.endpoint, timeout_s=120):
        learner = Learning(run, served.endpoint)
        learner.wait_for_step(1)
        (store / "slow").touch()
        time.sleep(LONG_S)
        (store / "slow").unlink()
        assert learner.wait() == 0, learner.log()
    assert [line["step"] for line in steps_of(run)] == [1, 2, 3]
    assert said(learner, "learner waits for the buffer at")
