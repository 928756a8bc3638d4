"""What a rule of the safety meter does to a run: a real learner process with a real buffer."""

from pathlib import Path

import pytest

from learner import checkpoint
from tests.learner.fakes import Learning, Recording, buffer_options, prepare, steps_of, tiny_model

pytestmark = pytest.mark.system

STOP = "learner.safety=[{metric: entropy, below: 99, action: stop}]"
"""A rule that fires at every step: no policy has so much entropy."""


def test_a_safety_rule_stops_the_run_after_a_checkpoint_and_the_model(
    serve, tmp_path: Path
) -> None:
    run, model = tmp_path / "run", tiny_model(tmp_path / "policy")
    prepare(run, model, STOP, "learner.steps=3")
    served = serve(tmp_path / "store", *buffer_options())
    with Recording(served.endpoint):
        learner = Learning(run, served.endpoint)
        assert learner.wait() == 3, learner.log()
    assert [line["learner/safety_alarms"] for line in steps_of(run)] == [1.0]
    [said] = [line for line in learner.log().splitlines() if line.startswith("r3l-learner: ")]
    assert said.startswith("r3l-learner: safety: entropy ") and said.endswith(" is below 99")
    assert checkpoint.latest(run / "checkpoints") == run / "checkpoints" / "step-000001"
    assert (run / "model" / "model.safetensors").is_file()
