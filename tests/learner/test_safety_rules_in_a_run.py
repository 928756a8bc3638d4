"""What a rule of the safety meter does to a run: real learner processes with a real buffer."""

from pathlib import Path

import pytest

from buffer import BufferClient
from buffer.wire.operations import Wait
from learner import checkpoint
from r3l.config import dump, load
from r3l.records import GroupPlan
from tests.learner.fakes import SETTINGS, Learning, Recording, prepare, steps_of, tiny_model

pytestmark = pytest.mark.system

LOOSE = ("buffer.max_staleness=3", "learner.sync_every=2", "learner.checkpoint_every=1")


def rule(action: str) -> str:
    """A rule that fires at every step: no policy has so much entropy."""
    return f"learner.safety=[{{metric: entropy, below: 99, action: {action}}}]"


def staleness_limit(endpoint: str, learner: int) -> int:
    """The service's limit, as it tells an actor that is too far behind version `learner`."""
    with BufferClient(endpoint) as client:
        refused = client.lease("late", learner - 2, GroupPlan(2, 2))
        assert isinstance(refused, Wait) and "limit" in refused.reason, refused
        return int(refused.reason.partition("limit ")[2].partition(":")[0])


def test_safety_rules_lower_the_staleness_limit_and_stop_the_run_and_a_resumed_run_keeps_it(
    serve, tmp_path: Path
) -> None:
    run, model = tmp_path / "run", tiny_model(tmp_path / "policy")
    prepare(run, model, *LOOSE, rule("lower_staleness"), "learner.steps=3")
    options = ["buffer.max_staleness=3", "learner.groups_per_step=3", "buffer.map_gib=0.25"]
    served = serve(tmp_path / "store", *options)
    with Recording(served.endpoint):
        learner = Learning(run, served.endpoint)
        assert learner.wait() == 0, learner.log()
    # 3, 2, 1, and no lower: weights are published at every second version.
    assert staleness_limit(served.endpoint, learner=3) == 1
    alarms = [line["learner/safety_alarms"] for line in steps_of(run)]
    assert alarms == [1.0, 2.0, 3.0]
    said = [line for line in learner.log().splitlines() if "safety: max_staleness is" in line]
    assert [line.split(" is ")[1] for line in said] == ["2 from now on", "1 from now on"]

    with BufferClient(served.endpoint) as client:
        assert client.limit_staleness(3) == 3  # what the learner knows is what is asked here
    stopping = load(None, [f"model={model}", *SETTINGS, *LOOSE, rule("stop")])
    (run / "config.yaml").write_text(dump(stopping))
    with Recording(served.endpoint):
        learner = Learning(run, served.endpoint, resume=True)
        assert learner.wait() == 3, learner.log()
    assert staleness_limit(served.endpoint, learner=4) == 1
    assert [line["step"] for line in steps_of(run)] == [1, 2, 3, 4]
    [said] = [line for line in learner.log().splitlines() if line.startswith("r3l-learner: ")]
    assert said.startswith("r3l-learner: safety: entropy ") and said.endswith(" is below 99")
    last = checkpoint.latest(run / "checkpoints")
    assert last == run / "checkpoints" / "step-000004"
    assert checkpoint.read_state(last).max_staleness == 1
    assert (run / "model" / "model.safetensors").is_file()
