"""A run that ended: real DeepSpeed, a real buffer, recorded actors, and a journal."""

from pathlib import Path

import pytest

from tests.buffer.fakes import Served
from tests.learner.fakes import Learning, Recording, buffer_options, prepare, tiny_model

KEPT = ("learner.journal.versions=99", "learner.keep_checkpoints=9", "learner.anchor_every=4")


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of nine steps, with checkpoints at 3, 6 and 9."""
    folder = tmp_path_factory.mktemp("ended")
    run, model = folder / "run", tiny_model(folder / "policy")
    prepare(run, model, *KEPT)
    served = Served(run / "buffer", "tcp://127.0.0.1:0", *buffer_options())
    try:
        with Recording(served.endpoint):
            learner = Learning(run, served.endpoint)
            assert learner.wait() == 0, learner.log()
    finally:
        served.kill()
    return run
