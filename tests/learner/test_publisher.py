"""The weight publisher where something goes wrong with it."""

from pathlib import Path

import pytest
import torch
import zmq

from learner import publisher
from learner.publisher import WeightPublisher
from r3l.errors import UserError, WeightsError
from r3l.weights.chunks import LOOPBACK, NETWORK, Link


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_publisher_that_serves_no_more_says_so_when_it_is_given_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = WeightPublisher("tcp://127.0.0.1:0")
    monkeypatch.setattr(serving, "_answer", None)  # what it is called with does not matter
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.setsockopt(zmq.LINGER, 0)
        asking.connect(serving.endpoint)
        asking.send(b"")
        serving._thread.join(timeout=20)
    with pytest.raises(WeightsError, match="has ended"):
        serving.publish(1, [("w", torch.zeros(2))])
    serving.close()


def test_keys_that_cannot_be_read_open_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher.zmq, "Context", lambda: pytest.fail("a context was made"))
    with pytest.raises(UserError, match="cannot be read"):
        WeightPublisher("tcp://127.0.0.1:0", keys=Path("/no/such/service.json"))


def test_patches_are_smaller_where_bytes_are_dear_than_on_loopback() -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(100_000, generator=generator).bfloat16()
    new = torch.where(torch.rand(len(old), generator=generator) < 0.03, old * 1.01, old)
    sizes: dict[Link, float] = {}
    for given in (None, NETWORK):
        serving = WeightPublisher("tcp://127.0.0.1:0", link=given)
        serving.publish(1, [("w", old)])
        sizes[serving.link] = serving.publish(2, [("w", new)])["patch_bytes"]
        assert serving._socket.getsockopt(zmq.SNDBUF) == serving.link.send_buffer
        serving.close()
    assert 1.2 * sizes[NETWORK] < sizes[LOOPBACK] < 0.1 * 2 * len(old)
