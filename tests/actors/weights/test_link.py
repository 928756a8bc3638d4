"""Chunks that travel readable by others, with keyed checksums."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio

from actors.weights.link import Link
from actors.weights.subscriber import WeightSubscriber, follow
from buffer.wire.curve_keys import generate
from learner.publishing.publisher import WeightPublisher
from r3l.errors import WeightsError
from r3l.weights.keyed_sums import keyed_sum, new_key
from tests.actors.weights.fakes import Engine, laid_out, some_weights, updated


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[tuple[WeightPublisher, Path]]:
    """A publisher with keys that serves chunks with keyed checksums, and the clients' key."""
    service, client, _ = generate(tmp_path)
    publisher = WeightPublisher("tcp://127.0.0.1:0", keys=service, keyed_bulk=True)
    yield publisher, client
    publisher.close()


def subscribed(
    publisher: WeightPublisher,
    client: Path,
    scenario: Callable[[WeightSubscriber], Awaitable[None]],
) -> None:
    async def run() -> None:
        subscriber = WeightSubscriber(publisher.endpoint, keys=client)
        try:
            async with asyncio.timeout(60):
                await scenario(subscriber)
        finally:
            subscriber.close()

    asyncio.run(run())


def test_whole_chunks_and_patches_arrive_over_the_keyed_port(
    keyed: tuple[WeightPublisher, Path],
) -> None:
    publisher, client = keyed

    async def scenario(subscriber: WeightSubscriber) -> None:
        weights = some_weights(elements=100_000)
        for version in (1, 2):
            publisher.publish(version, weights)
            manifest = await subscriber.latest()
            assert manifest is not None and subscriber._for_chunks() is subscriber._bulk
            async with subscriber.bring(manifest) as path:
                assert Path(path).read_bytes() == laid_out(weights)
            subscriber.loaded = (manifest.origin, manifest.version)
            weights = updated(weights)
        assert subscriber._bulk is not None
        assert subscriber._bulk.endpoint.endswith(f":{publisher._doors[1].port}")

    subscribed(publisher, client, scenario)


def test_forged_chunks_are_counted_and_fetched_again_encrypted(
    keyed: tuple[WeightPublisher, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, client = keyed
    weights = some_weights(elements=1000)
    publisher.publish(1, weights)

    door = publisher._doors[1]

    def change_on_its_way(client: bytes, frames: list[Any]) -> None:
        assert door.key is not None
        claimed, body = keyed_sum(door.key, frames), bytearray(frames[1])
        body[0] ^= 1
        door.socket.send_multipart([client, frames[0], bytes(body), claimed])

    async def scenario(subscriber: WeightSubscriber) -> None:
        engine = Engine()
        following = asyncio.create_task(follow(subscriber, engine.load, every_s=0.01))
        while not engine.loaded:
            await asyncio.sleep(0.01)
        following.cancel()
        assert engine.loaded == [(1, laid_out(weights))]
        assert subscriber.metrics.weights_failed == {"forged": 1}

    monkeypatch.setattr(door, "send", change_on_its_way)
    subscribed(publisher, client, scenario)


def test_the_keyed_port_serves_only_who_has_the_key_and_never_says_it(
    keyed: tuple[WeightPublisher, Path],
) -> None:
    publisher, _ = keyed
    publisher.publish(1, some_weights(elements=1000))
    door = publisher._doors[1]

    async def scenario() -> None:
        with zmq.asyncio.Context() as context:
            chunk = {"op": "chunk", "origin": publisher.origin, "version": 1, "index": 0}
            chunk |= {"have": -1, "at": 0, "size": 10, "keep": False}
            latest = {"op": "latest", "origin": "", "have": -1}
            for key, request in ((None, chunk), (new_key(), chunk), (door.key, latest)):
                link = Link(context, door.endpoint, 10.0, key=key)
                await link.send(request)
                with pytest.raises(WeightsError) as refused:
                    await link.receive()
                assert refused.value.cause == ("refused" if key in (None, door.key) else "forged")
                link.disconnect()

    asyncio.run(scenario())
    assert publisher.sent["refused"] == 3 and not publisher.sent["full_bytes"]


def test_without_encryption_a_publisher_tells_no_key() -> None:
    publisher = WeightPublisher("tcp://127.0.0.1:0", keyed_bulk=True)
    assert len(publisher._doors) == 1
    publisher.close()
