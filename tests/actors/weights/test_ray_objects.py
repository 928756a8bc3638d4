"""Sets from Ray's object store: without Ray, and on four nodes of a real cluster."""

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.weights import ray_objects
from actors.weights.ray_objects import FromRay
from actors.weights.subscriber import WeightSubscriber
from actors.weights.transport import OrFromPublisher
from learner.publishing.publisher import WeightPublisher
from r3l.weights import ray_store
from r3l.weights.ray_store import RayStore
from tests.actors.weights.fakes import FakeRay, laid_out, some_weights, updated


@pytest.fixture
def publisher() -> Iterator[WeightPublisher]:
    publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000)
    publisher.store = RayStore(publisher.origin)
    yield publisher
    publisher.close()


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setattr(ray_store, "connect", lambda: ray)
    monkeypatch.setattr(ray_objects.importlib.util, "find_spec", lambda name: name)
    return ray


async def brought(transport: OrFromPublisher) -> bytes:
    """Loads the newest version; returns its bytes."""
    subscriber = transport.subscriber
    manifest = await subscriber.latest()
    assert manifest is not None
    async with transport.bring(manifest) as path:
        subscriber.loaded = (manifest.origin, manifest.version)
        return Path(path).read_bytes()


def test_sets_come_from_the_store_and_else_from_the_publisher(
    publisher: WeightPublisher, ray: FakeRay
) -> None:
    async def scenario() -> None:
        subscriber = WeightSubscriber(publisher.endpoint)
        transport = OrFromPublisher(FromRay(subscriber), subscriber)
        weights = some_weights()
        for version in (1, 2):
            publisher.publish(version, weights)
            assert await brought(transport) == laid_out(weights)
            weights = updated(weights)
        assert not publisher.sent["full_bytes"] and not publisher.sent["patch_bytes"]
        assert not subscriber.metrics.weights_failed
        for version in (3, 4):  # it misses one
            publisher.publish(version, weights)
        assert await brought(transport) == laid_out(weights)
        assert subscriber.metrics.weights_failed == {"ray_other_version": 1}
        assert publisher.sent["patch_bytes"] and not publisher.sent["full_bytes"]
        weights = updated(weights)
        publisher.publish(5, weights)
        ray.objects[-1] = ray.objects[-2]  # the node lies
        assert await brought(transport) == laid_out(weights)
        assert sum(subscriber.metrics.weights_failed.values()) == 2
        subscriber.close()

    asyncio.run(scenario())


def test_a_version_that_ray_does_not_take_is_counted_and_served_by_the_publisher(
    publisher: WeightPublisher, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(value: object) -> int:
        raise ray.exceptions.RayError("the store is full")

    monkeypatch.setattr(ray, "put", full)
    weights = some_weights(elements=100)
    assert publisher.publish(1, weights)["not_in_ray"] == 1

    async def scenario() -> None:
        subscriber = WeightSubscriber(publisher.endpoint)
        transport = OrFromPublisher(FromRay(subscriber), subscriber)
        assert await brought(transport) == laid_out(weights)
        assert sum(subscriber.metrics.weights_failed.values()) == 1
        subscriber.close()

    asyncio.run(scenario())


@pytest.fixture
def nodes() -> Iterator[list[Any]]:
    """The nodes of a cluster on this machine; the last three have a resource `engine`."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    added = [cluster.add_node(**node, resources={f"n{at}": 1}) for at in range(3)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield [cluster, *added]
    ray.shutdown()
    cluster.shutdown()


class EngineOnNode:
    """An actor of Ray that fetches as an engine's process on its node would."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.set: bytes = b""

    def update(self) -> tuple[bytes, dict[str, int]]:
        async def fetch() -> tuple[bytes, dict[str, int]]:
            subscriber = WeightSubscriber(self.endpoint)
            transport = OrFromPublisher(FromRay(subscriber), subscriber)
            loaded = await brought(transport)
            failed = dict(subscriber.metrics.weights_failed)
            subscriber.close()
            return loaded, failed

        return asyncio.run(fetch())


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install ray")
def test_two_nodes_that_die_during_a_transfer_delay_no_other_node(
    publisher: WeightPublisher, nodes: list[Any]
) -> None:
    import ray

    cluster, *added = nodes
    weights = some_weights(elements=20_000_000)
    assert publisher.publish(1, weights)["not_in_ray"] == 0
    remote = ray.remote(EngineOnNode)
    engines = [
        remote.options(resources={f"n{at}": 0.5}).remote(publisher.endpoint) for at in (0, 1, 2)
    ]
    updates = [engine.update.remote() for engine in engines]
    for node in added[:2]:
        cluster.remove_node(node, allow_graceful=False)
    loaded, failed = ray.get(updates[2], timeout=120)
    assert loaded == laid_out(weights) and not failed
    newer = updated(weights)
    assert publisher.publish(2, newer)["not_in_ray"] == 0
    loaded, _ = ray.get(engines[2].update.remote(), timeout=120)
    assert loaded == laid_out(newer)
