"""A run that has ended: settings, progress, a store of groups."""

import pytest

from buffer.storage.store import Store
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import RunFolder
from tests.buffer.viewer import stores
from tests.r3l.files.made import evaluation


def step(number, **metrics):
    return StepLine(number, metrics, 1000.0 + 10 * number)


@pytest.fixture
def ended(tmp_path):
    """The folder of a run of 4 steps with 40 groups of 4 tasks."""
    run = tmp_path / "runs" / "first"
    (run / "logs").mkdir(parents=True)
    (run / "config.yaml").write_text(configuration.dump(RunConfig(seed=7)))
    lines = [evaluation(0, 0.25)]
    lines += [step(n, **{"group/success_base": n / 10, "learner/loss": 0.5}) for n in (1, 2, 3, 4)]
    lines.append(evaluation(4, 0.75))
    for line in lines:
        RunFolder(run).add_progress(line)
    store = Store(run / "buffer", map_gib=0.25)
    stores.write(store, 40, tasks=4)
    store.close()
    return run
