"""The weight publisher where something goes wrong with it."""

from pathlib import Path

import pytest
import torch
import zmq

from learner import publisher
from learner.publisher import WeightPublisher
from r3l.errors import UserError, WeightsError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_whose_thread_has_ended_refuses_new_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = WeightPublisher("tcp://127.0.0.1:0")
    monkeypatch.setattr(serving, "_handle", None)  # what it is called with does not matter
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.setsockopt(zmq.LINGER, 0)
        asking.connect(serving.endpoint)
        asking.send(b"")
        serving._thread.join(timeout=120)
    with pytest.raises(WeightsError, match="has ended"):
        serving.publish(1, [("w", torch.zeros(2))])
    serving.close()


def test_unreadable_keys_open_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher.zmq, "Context", lambda: pytest.fail("a context was made"))
    with pytest.raises(UserError, match="cannot be read"):
        WeightPublisher("tcp://127.0.0.1:0", keys=Path("/no/such/service.json"))
