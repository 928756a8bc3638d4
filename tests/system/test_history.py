"""Groups that begin with a stored attempt, with real vLLM."""

from pathlib import Path

import pytest

from buffer.storage.store import Store
from buffer.storage.transaction import read_group
from buffer.tools.verify import verify
from r3l.records import Group
from tests.system.test_run import launch

pytestmark = pytest.mark.system
STEPS = 6
HALF_TOLD = (
    "env.options.stations=3",
    "env.options.exceptions=2",  # the note tells two tools of three, so that some attempts succeed
    "env.train_tasks=8",
    "algorithm=grpo",
    "algorithm.group_size=4",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose tasks come again, and begin with the first steps of a stored success."""
    folder = tmp_path_factory.mktemp("runs") / "history"
    handed = ("explorer=prefix", "explorer.share=1", "explorer.threshold=1")
    process = launch(folder, "--steps", str(STEPS), *HALF_TOLD, *handed)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    return folder


def stored(run: Path) -> list[Group]:
    store = Store(run / "buffer", read_only=True)
    try:
        assert not verify(store)
        with store.read() as txn:
            return [read_group(txn.group_bytes(row), row) for row in txn.rows() if row.handed]
    finally:
        store.close()


def test_a_run_trains_on_groups_that_began_with_a_stored_success(run: Path) -> None:
    bases = [one for group in stored(run) for one in group.trajectories if one.role == "base"]
    begun = [one for one in bases if one.extra.start]
    assert begun and all(one.extra.source for one in begun)
    assert all(0 < one.extra.start < one.num_steps for one in begun)
