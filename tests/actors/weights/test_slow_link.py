"""Weights over a link on which bytes trickle: they arrive, late, and nothing comes twice."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from actors.weights.subscriber import WeightSubscriber, follow
from learner.publishing.publisher import WeightPublisher
from r3l.errors import WeightsError
from tests.actors.weights.fakes import Engine, laid_out, some_weights, updated
from tests.actors.weights.slow_link import SlowLink, slow_link

ELEMENTS = 250_000  # 500 kB, one chunk
Scenario = Callable[[WeightSubscriber, Engine, SlowLink], Awaitable[None]]


def held(subscriber: WeightSubscriber) -> int:
    """The received bytes of incomplete chunks."""
    return sum(chunk.received for chunk in subscriber._ranges._partial.values())


@pytest.fixture
def publisher() -> Iterator[WeightPublisher]:
    publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1)
    yield publisher
    publisher.close()


def followed(
    publisher: WeightPublisher,
    scenario: Scenario,
    rate: float,
    cut: float = float("inf"),
    timeout_s: float = 10.0,
) -> WeightSubscriber:
    """Run the scenario beside an engine that follows the publisher over a slow link."""

    async def run() -> WeightSubscriber:
        async with slow_link(publisher.endpoint, rate, cut) as link, asyncio.timeout(120):
            subscriber, engine = WeightSubscriber(link.endpoint, timeout_s=timeout_s), Engine()
            following = asyncio.create_task(follow(subscriber, engine.load, every_s=0.01))
            try:
                await scenario(subscriber, engine, link)
            finally:
                following.cancel()
                with suppress(asyncio.CancelledError):
                    await following
                subscriber.close()
        return subscriber

    return asyncio.run(run())


def test_a_chunk_that_takes_longer_than_the_deadline_arrives_since_bytes_come(
    publisher: WeightPublisher,
) -> None:
    weights = some_weights(elements=ELEMENTS)
    publisher.publish(1, weights)

    async def scenario(_: WeightSubscriber, engine: Engine, link: SlowLink) -> None:
        while not engine.loaded:
            await asyncio.sleep(0.01)
        assert engine.loaded == [(1, laid_out(weights))]

    # A set takes 5 s, and a range of it 0.7 s.
    metrics = followed(publisher, scenario, rate=100_000, timeout_s=4.0).metrics
    assert metrics.weights_full_bytes == len(laid_out(weights))
    assert not metrics.weights_failed


def test_what_came_before_a_connection_broke_is_not_fetched_again(
    publisher: WeightPublisher,
) -> None:
    weights = some_weights(elements=ELEMENTS)
    publisher.publish(1, weights)

    async def scenario(_: WeightSubscriber, engine: Engine, link: SlowLink) -> None:
        while not engine.loaded:
            await asyncio.sleep(0.01)
        assert engine.loaded == [(1, laid_out(weights))] and link.cuts >= 3

    metrics = followed(publisher, scenario, rate=1_000_000, cut=150_000, timeout_s=1.5).metrics
    assert metrics.weights_full_bytes == len(laid_out(weights))
    assert set(metrics.weights_failed) == {"no_reply"}


def test_weights_arrive_though_newer_ones_are_published_faster_than_they_come(
    publisher: WeightPublisher,
) -> None:
    sets = [some_weights(seed, ELEMENTS) for seed in range(4)]
    publisher.publish(1, sets[1])

    async def scenario(_: WeightSubscriber, engine: Engine, link: SlowLink) -> None:
        version = 1
        while len(engine.loaded) < 3:
            version += 1
            publisher.publish(version, sets[version % 4])
            await asyncio.sleep(0.3)  # a set takes a second
        loaded = [loaded for loaded, _ in engine.loaded]
        assert loaded == sorted(set(loaded)) and version > loaded[-1]
        assert all(data == laid_out(sets[v % 4]) for v, data in engine.loaded)

    followed(publisher, scenario, rate=500_000)


def test_bytes_of_a_version_that_is_no_longer_wanted_are_dropped(
    publisher: WeightPublisher,
) -> None:
    weights = some_weights(elements=12 * ELEMENTS)
    publisher.publish(1, weights)

    async def run() -> None:
        async with slow_link(publisher.endpoint, 2_000_000) as link, asyncio.timeout(120):
            subscriber = WeightSubscriber(link.endpoint)
            manifest = await subscriber.latest()
            assert manifest is not None
            fetching = asyncio.create_task(subscriber.fetch(manifest))
            while held(subscriber) < 100_000:
                await asyncio.sleep(0.01)
            newer = updated(weights)
            publisher.publish(2, newer)
            with pytest.raises(WeightsError, match="no longer served"):
                await fetching
            assert held(subscriber) >= 100_000  # nobody knows yet what is wanted next
            newest = await subscriber.latest()
            assert newest is not None
            subscriber._ranges.begin(newest, subscriber.stage(newest))
            assert held(subscriber) == 0
            staged = await subscriber.fetch(newest)
            assert open(staged.path, "rb").read() == laid_out(newer)  # noqa: SIM115
            subscriber.close()

    asyncio.run(run())
