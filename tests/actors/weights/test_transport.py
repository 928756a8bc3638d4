"""The transport that the settings ask for."""

import sys

import pytest

from actors.weights.relay_member import FromRelay
from actors.weights.subscriber import WeightSubscriber
from actors.weights.transport import OrFromPublisher, transport_of
from r3l.errors import UserError
from r3l.run.settings.actor import WeightsConfig


def test_each_setting_has_its_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    subscriber = WeightSubscriber("tcp://127.0.0.1:9")
    assert transport_of(WeightsConfig(), subscriber, None) is subscriber
    relay = transport_of(WeightsConfig(transport="relay"), subscriber, None)
    assert isinstance(relay, OrFromPublisher) and isinstance(relay.transport, FromRelay)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"transport=ray: Ray is not installed; on every node, run"):
        transport_of(WeightsConfig(transport="ray", bulk="keyed"), subscriber, None)
    subscriber.close()


def test_ray_is_refused_where_weights_must_be_encrypted() -> None:
    with pytest.raises(ValueError, match="Ray's object store does not encrypt"):
        WeightsConfig(transport="ray")
