"""A checkpoint that a released version wrote is found, checked, and trained on."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from buffer.storage.store import Store
from buffer.tools import store_reads
from learner import checkpoint
from learner.checkpoint import CHECKPOINTS
from r3l.errors import UserError
from r3l.run.config import load
from tests.kept import VERSIONS, checkpoints, lacks, stores


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A run's folder with a kept checkpoint and the kept store, and what is known of them."""
    stores.unpack(request.param, tmp_path / "store")
    return tmp_path, checkpoints.unpack(request.param, tmp_path)


def test_a_kept_checkpoint_is_whole_and_belongs_to_its_model(kept) -> None:
    run, known = kept
    found = checkpoint.latest(run / CHECKPOINTS, thorough=True)
    assert found == run / CHECKPOINTS / "step-000002"
    state = asdict(checkpoint.read_state(found))
    assert lacks(state | {"groups": list(state["groups"])}, known["state"]) == []
    config = load(None, checkpoints.SETTINGS).learner
    digest = known["state"]["model_digest"]
    checkpoint.check_resumable(found, config, dtype="torch.float32", model_digest=digest)
    with pytest.raises(UserError, match="began with another model"):
        checkpoint.check_resumable(found, config, dtype="torch.float32", model_digest="other")


def test_the_step_after_a_kept_checkpoint_is_the_one_that_its_version_made(kept) -> None:
    """Up to what processors and libraries round differently."""
    run, known = kept
    with Store(run / "store", read_only=True) as store:
        groups = [store_reads.group(store, name) for name in known["state"]["groups"]]
    made = checkpoints.next_step(run / CHECKPOINTS / "step-000002", groups)
    wanted = known["next"]
    assert made["step"] == wanted["step"] == 3 and made["applied"]
    assert made["moved"] == pytest.approx(wanted["moved"], rel=1e-3)
    for name in checkpoints.MEASURED:
        assert made[name] == pytest.approx(wanted[name], rel=1e-3), name
