"""A run that has ended: settings, progress, a store of groups."""

import json

import pytest

from buffer.storage.store import Store
from learner.run_files import PROGRESS
from r3l import config as configuration
from r3l.config import RunConfig
from tests.buffer.viewer import stores


def step(number, **metrics):
    return {"kind": "step", "step": number, "time": 1000.0 + 10 * number, **metrics}


def evaluation(number, success):
    return {"kind": "eval", "step": number, "time": 1.0, "success": success, "reward": success,
            "tasks": 50, "steps": 3.0, "failed": 0}  # fmt: skip


@pytest.fixture
def ended(tmp_path):
    """The folder of a run of 4 steps with 40 groups of 4 tasks."""
    run = tmp_path / "runs" / "first"
    (run / "logs").mkdir(parents=True)
    (run / "config.yaml").write_text(configuration.dump(RunConfig(seed=7)))
    lines = [evaluation(0, 0.25)]
    lines += [step(n, **{"group/success_base": n / 10, "learner/loss": 0.5}) for n in (1, 2, 3, 4)]
    lines.append(evaluation(4, 0.75))
    (run / PROGRESS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = Store(run / "buffer", map_gib=0.25)
    stores.write(store, 40, tasks=4)
    store.close()
    return run
