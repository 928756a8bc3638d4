"""The plan of a host of 8 GPUs, rehearsed with 16 actors and 8 ranks: `make rehearsal`."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from buffer.storage.store import Store
from buffer.tools.verify import verify
from tests.system.rehearsal import ACTORS, RANKS, STEPS
from tests.system.test_run import processes_of, scalars, trained_once

pytestmark = [pytest.mark.system, pytest.mark.nightly]


def test_sixteen_actors_and_eight_ranks_lease_train_publish_and_stop(tmp_path: Path) -> None:
    run = tmp_path / "rehearsal"
    ended = subprocess.run(
        [sys.executable, "-m", "tests.system.rehearsal", str(run)],
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    print(ended.stdout)
    assert ended.returncode == 0 and f"step {STEPS}/{STEPS}" in ended.stdout, ended.stdout
    assert processes_of(run) == []
    logs = [(run / "logs" / f"actor-{index}.log").read_text() for index in range(ACTORS)]
    places = [f"simulated on {index % 8} with 0.31" for index in range(ACTORS)]
    assert all(place in log for place, log in zip(places, logs, strict=True)), places
    assert all(re.search("^loaded [1-9]", log, re.M) for log in logs), "weights reach every actor"
    with contextlib.closing(Store(run / "buffer", map_gib=1, read_only=True)) as store:
        assert verify(store) == []
        with store.read() as txn:
            holders = {row.actor.partition(".")[0] for row in txn.rows()}
    assert {f"actor-{index}" for index in range(ACTORS)} <= holders, "every actor leased"
    assert trained_once(run)
    assert len(list((run / "checkpoints").glob("step-*/state.json"))) == 1
    assert f"dist_world_size={RANKS}" in (run / "logs" / "learner.log").read_text()
    assert len(scalars(run)["learner/loss"]) == STEPS
