"""A learner whose buffer is stopped or slow waits for it: real processes, signals and LMDB."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from buffer import Lease
from tests.buffer.fakes import Served, until
from tests.learner.fakes import (
    Learning,
    Recording,
    buffer_options,
    prepare,
    steps_of,
    tiny_model,
)
from tests.learner.impatient import PATIENCE_S

pytestmark = pytest.mark.system

LONG_S = 16.0
"""Longer than a client without patience waits in `tests.learner.impatient`, which allows a rank
less."""

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


def test_two_ranks_wait_for_a_stopped_buffer_and_for_late_groups_and_evaluations(
    serve, tmp_path: Path
) -> None:
    def late(lease: Lease) -> None:
        if lease.purpose == "eval":
            time.sleep(1.25 * PATIENCE_S)
        elif recording.version == 1:  # the second step takes three of them
            time.sleep(0.4 * PATIENCE_S)

    run, there = tmp_path / "run", tmp_path / "there"
    there.mkdir()
    copied = f"learner.on_checkpoint=cp -r {{folder}} {there}/"
    prepare(run, tiny_model(tmp_path / "policy"), "learner.steps=4", "eval.tasks=1", copied)
    served = serve(tmp_path / "store", *buffer_options())
    with Recording(served.endpoint, before=late, timeout_s=500) as recording:
        served.process.send_signal(signal.SIGSTOP)
        learner = Learning(run, served.endpoint, ranks=2, module="tests.learner.impatient")
        until(lambda: said(learner, "r3l-learner ready") or learner.process.poll() is not None)
        silence(served, learner)
        assert said(learner, "learner waits for the buffer at", "no reply to"), learner.log()
        learner.wait_for_step(2)
        silence(served, learner)
        assert learner.wait() == 0, learner.log()
    assert said(learner, "replies again, after") and not (run / "hangs.jsonl").exists()
    lines = [json.loads(line) for line in (run / "progress.jsonl").read_text().splitlines()]
    first, evaluated, second, *_, last, evaluated_last = lines
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("step", 1),
        ("eval", 0),  # weights are published after it
        ("step", 2),
        ("step", 3),
        ("step", 4),
        ("eval", 4),
    ]
    assert evaluated["time"] - first["time"] > PATIENCE_S
    assert second["learner/wait_s"] > PATIENCE_S
    assert evaluated_last["time"] - last["time"] > PATIENCE_S
    for folder in (run / "checkpoints" / "step-000004", run / "model"):
        subprocess.run(["diff", "-r", folder, there / folder.name], check=True)
    assert last["learner/on_checkpoint_failed"] == 0


def test_a_learner_waits_for_a_buffer_whose_disk_takes_long_to_sync(serve, tmp_path: Path) -> None:
    run, store = tmp_path / "run", tmp_path / "store"
    prepare(run, tiny_model(tmp_path / "policy"), "learner.steps=3")
    served = serve(store, *buffer_options(), change=SLOW)
    with Recording(served.endpoint, timeout_s=120):
        learner = Learning(run, served.endpoint, module="tests.learner.impatient")
        learner.wait_for_step(1)
        (store / "slow").touch()
        time.sleep(LONG_S)
        (store / "slow").unlink()
        assert learner.wait() == 0, learner.log()
    assert [line["step"] for line in steps_of(run)] == [1, 2, 3]
    assert said(learner, "learner waits for the buffer at")
