"""Weights over real ZeroMQ: whole or not at all, as patches where these are smaller, at the
asker's own pace, whatever happens to the other side."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import learner.publishing.publisher
from actors.weights.chunk_ranges import ChunkRange
from actors.weights.subscriber import WeightSubscriber, follow
from buffer.wire.curve_keys import generate
from learner.publishing.publisher import WeightPublisher
from r3l.errors import PublisherUnavailable, UserError, WeightsError
from r3l.weights.manifest import CHUNK_BYTES, Piece
from r3l.weights.patch import Patch
from tests.actors.weights.fakes import (
    Engine,
    held,
    laid_out,
    some_weights,
    updated,
)
from tests.buffer.wire.strangers import MIB, Memory, accept, flood, frame


@pytest.fixture
def publisher() -> Iterator[WeightPublisher]:
    publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000)
    yield publisher
    publisher.close()


def subscribed(
    endpoint: str,
    scenario: Callable[[WeightSubscriber], Awaitable[None]],
    *,
    timeout_s: float = 10.0,
    keys: Path | None = None,
) -> None:
    async def run() -> None:
        subscriber = WeightSubscriber(endpoint, timeout_s=timeout_s, keys=keys)
        try:
            async with asyncio.timeout(60):
                await scenario(subscriber)
        finally:
            subscriber.close()

    asyncio.run(run())


async def update(subscriber: WeightSubscriber) -> int:
    """Fetch the newest version, as `follow` does; returns the version."""
    manifest = await subscriber.latest()
    assert manifest is not None
    await subscriber.fetch(manifest)
    subscriber.loaded = (manifest.origin, manifest.version)
    return manifest.version


def test_a_set_of_several_chunks_arrives_bit_for_bit(publisher: WeightPublisher) -> None:
    weights = some_weights()
    publisher.publish(5, weights)

    async def scenario(subscriber: WeightSubscriber) -> None:
        assert await update(subscriber) == 5
        assert held(subscriber.staged) == laid_out(weights) and len(laid_out(weights)) > CHUNK_BYTES
        assert await subscriber.latest() is None

    subscribed(publisher.endpoint, scenario)


def test_a_small_update_travels_as_patches_and_gives_the_same_bytes(
    publisher: WeightPublisher,
) -> None:
    weights = some_weights()

    async def scenario(subscriber: WeightSubscriber) -> None:
        nonlocal weights
        publisher.publish(0, weights)
        await update(subscriber)
        full = subscriber.metrics.weights_full_bytes
        for version in (1, 2, 3):
            weights = updated(weights)
            figures = publisher.publish(version, weights)
            if version != 2:  # two patches at once are as good as one at a time
                await update(subscriber)
                assert held(subscriber.staged) == laid_out(weights)
        assert 0.01 < figures["patch_density"] < 0.03
        assert figures["patch_bytes"] < 0.03 * figures["full_bytes"]
        assert subscriber.metrics.weights_full_bytes == full
        assert subscriber.metrics.weights_patch_bytes < 0.1 * full

    subscribed(publisher.endpoint, scenario)


def test_an_anchor_and_a_new_subscriber_get_the_whole_set(publisher: WeightPublisher) -> None:
    weights = some_weights()
    publisher.anchor_every = 2

    async def scenario(subscriber: WeightSubscriber) -> None:
        nonlocal weights
        received = []
        for version in (1, 2, 3):
            weights = updated(weights)
            publisher.publish(version, weights)
            before = subscriber.metrics.weights_full_bytes
            await update(subscriber)
            received.append(subscriber.metrics.weights_full_bytes - before)
            assert held(subscriber.staged) == laid_out(weights)
        assert received == [len(laid_out(weights)), len(laid_out(weights)), 0]

    subscribed(publisher.endpoint, scenario)


def test_a_large_update_is_sent_whole(publisher: WeightPublisher) -> None:
    async def scenario(subscriber: WeightSubscriber) -> None:
        for version in (1, 2):
            publisher.publish(version, some_weights(version))
            await update(subscriber)
        assert held(subscriber.staged) == laid_out(some_weights(2))
        assert subscriber.metrics.weights_patch_bytes == 0

    subscribed(publisher.endpoint, scenario)


def test_weights_are_sent_in_the_dtype_of_the_engine(publisher: WeightPublisher) -> None:
    weights = [("a", torch.randn(1000))]
    publisher.publish(1, weights, torch.bfloat16)

    async def scenario(subscriber: WeightSubscriber) -> None:
        await update(subscriber)
        expected = laid_out([("a", weights[0][1].bfloat16())])
        assert held(subscriber.staged) == expected

    subscribed(publisher.endpoint, scenario)


@pytest.mark.parametrize("harm", ["flip", "truncate", "another base"])
def test_a_damaged_patch_is_found_and_the_whole_chunk_requested(
    publisher: WeightPublisher, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = some_weights(elements=100_000)
    publisher.publish(0, weights)
    good = Patch.to_wire

    def harmed(patch: Patch) -> bytes:
        if harm == "another base":
            return good(replace(patch, base=77))
        frame = bytearray(good(patch))
        frame[-5] ^= 1
        return bytes(frame[: len(frame) // 2] if harm == "truncate" else frame)

    async def scenario(subscriber: WeightSubscriber) -> None:
        engine = Engine()
        following = asyncio.create_task(follow(subscriber, engine.load, every_s=0.01))
        while len(engine.loaded) < 1:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(Patch, "to_wire", harmed)
        newer = updated(weights)
        publisher.publish(1, newer)
        while len(engine.loaded) < 2:
            await asyncio.sleep(0.01)
        following.cancel()
        assert engine.loaded == [(0, laid_out(weights)), (1, laid_out(newer))]
        cause = "wrong_base" if harm == "another base" else "patch_damaged"
        assert subscriber.metrics.weights_failed == {cause: 1}

    subscribed(publisher.endpoint, scenario)


def test_a_damaged_chunk_is_refused(publisher: WeightPublisher) -> None:
    publisher.publish(1, some_weights(elements=100))
    broken = publisher._chunks[0].data.copy()
    broken[3] ^= 1
    publisher._chunks[0] = replace(publisher._chunks[0], data=broken)

    async def scenario(subscriber: WeightSubscriber) -> None:
        with pytest.raises(WeightsError, match="damaged"):
            await update(subscriber)
        publisher.publish(2, some_weights(elements=100))
        await update(subscriber)
        assert held(subscriber.staged) == laid_out(some_weights(elements=100))

    subscribed(publisher.endpoint, scenario)


def test_a_damaged_manifest_is_refused_before_anything_is_fetched(
    publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(1, some_weights(elements=100))
    of_whole = learner.publishing.publisher.xxh3_64_intdigest
    monkeypatch.setattr(
        learner.publishing.publisher, "xxh3_64_intdigest", lambda data: of_whole(data) ^ 1
    )

    async def scenario(subscriber: WeightSubscriber) -> None:
        with pytest.raises(WeightsError, match="manifest is damaged") as refused:
            await subscriber.latest()
        assert refused.value.cause == "checksum"

    subscribed(publisher.endpoint, scenario)


def test_a_version_replaced_during_a_fetch_costs_only_the_changed_chunks(
    publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.weights.subscriber.REQUESTS_IN_FLIGHT", 1)
    weights = some_weights(elements=16_000_000)
    publisher.publish(1, weights)

    async def scenario(subscriber: WeightSubscriber) -> None:
        manifest = await subscriber.latest()
        assert manifest is not None and manifest.layout.num_chunks == 4
        newer, request, calls = updated(weights), subscriber._request_more, 0

        async def request_more(*arguments: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 3:  # two chunks of four have come
                publisher.publish(2, newer)
            await request(*arguments)

        monkeypatch.setattr(subscriber, "_request_more", request_more)
        subscriber._range_size.size = CHUNK_BYTES
        with pytest.raises(WeightsError) as gone:
            await subscriber.fetch(manifest)
        assert gone.value.cause == "no_longer_served"
        assert await update(subscriber) == 2
        assert held(subscriber.staged) == laid_out(newer)
        assert subscriber.metrics.weights_full_bytes == len(laid_out(newer))  # none came twice
        assert subscriber.metrics.weights_patch_bytes > 0

    subscribed(publisher.endpoint, scenario)


def test_chunks_on_their_way_stay_as_they_were_when_newer_weights_are_published(
    publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.weights.subscriber.REQUESTS_IN_FLIGHT", 100)
    weights = some_weights(elements=24_000_000)
    publisher.publish(1, weights)

    async def scenario(subscriber: WeightSubscriber) -> None:
        manifest = await subscriber.latest()
        assert manifest is not None
        staged = subscriber.stage(manifest)
        requested: dict[int, ChunkRange] = {}
        subscriber._range_size.size = CHUNK_BYTES
        subscriber._ranges.begin(manifest, staged)
        await subscriber._request_more(staged, manifest, requested, subscriber._link)
        while publisher.sent["full_bytes"] < manifest.layout.total_bytes:
            await asyncio.sleep(0.01)
        publisher.publish(2, updated(weights))
        while requested:
            header, payload = await subscriber._link.receive()
            whole = subscriber._ranges.add(requested.pop(header["rid"]), -1, header, payload)
            assert whole is not None
            subscriber._store(staged, manifest, whole)
        assert held(staged) == laid_out(weights)
        await update(subscriber)
        assert held(staged) == laid_out(updated(weights))

    subscribed(publisher.endpoint, scenario)


def test_a_partly_published_set_is_never_fetched(
    publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = some_weights(elements=10_000_000)
    publisher.publish(1, weights)

    def full(pieces: list[Piece], size: int) -> np.ndarray:
        if size < CHUNK_BYTES:  # the last chunk
            raise MemoryError
        return good(pieces, size)

    async def scenario(subscriber: WeightSubscriber) -> None:
        await update(subscriber)
        good_set = held(subscriber.staged)
        with monkeypatch.context() as patching:
            patching.setattr("learner.publishing.publisher.assemble", full)
            with pytest.raises(WeightsError, match="weights 2: could not be published"):
                publisher.publish(2, updated(weights))
        assert await subscriber.latest() is None
        subscriber.loaded = None
        await update(subscriber)
        assert held(subscriber.staged) == good_set
        publisher.publish(3, updated(weights))
        assert await update(subscriber) == 3
        assert held(subscriber.staged) == laid_out(updated(weights))

    good = learner.publishing.publisher.assemble
    subscribed(publisher.endpoint, scenario)


def test_a_restarted_publisher_is_followed_even_to_an_older_version() -> None:
    first = WeightPublisher("tcp://127.0.0.1:0")
    first.publish(9, some_weights(9, 100))

    async def scenario(subscriber: WeightSubscriber) -> None:
        engine = Engine()
        following = asyncio.create_task(follow(subscriber, engine.load, every_s=0.01))
        while len(engine.loaded) < 1:
            await asyncio.sleep(0.01)
        first.close()
        while not subscriber.metrics.weights_failed:
            await asyncio.sleep(0.01)
        second = WeightPublisher(first.endpoint)
        second.publish(7, some_weights(7, 100))
        while len(engine.loaded) < 2:
            await asyncio.sleep(0.01)
        following.cancel()
        second.close()
        assert engine.loaded[-1] == (7, laid_out(some_weights(7, 100)))
        assert set(subscriber.metrics.weights_failed) == {"no_reply"}

    subscribed(first.endpoint, scenario, timeout_s=0.2)


def test_a_restarted_engine_is_loaded_without_fetching_again(
    publisher: WeightPublisher,
) -> None:
    publisher.publish(1, some_weights(elements=100))

    async def scenario(subscriber: WeightSubscriber) -> None:
        await update(subscriber)
        received = subscriber.metrics.weights_full_bytes
        subscriber.loaded = None
        assert await update(subscriber) == 1
        assert subscriber.metrics.weights_full_bytes == received > 0

    subscribed(publisher.endpoint, scenario)


def test_a_subscriber_that_is_cancelled_as_its_reply_arrives_ends() -> None:
    class Socket:
        def __init__(self) -> None:
            self.arrived: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def send(self, message: bytes) -> None:
            pass

        def poll(self, timeout: float) -> asyncio.Future[int]:
            return self.arrived

        def close(self, linger: int | None = None) -> None:
            pass

    async def scenario(subscriber: WeightSubscriber) -> None:
        subscriber._link.socket = socket = Socket()  # type: ignore[assignment]
        receiving = asyncio.create_task(subscriber._link.receive())
        await asyncio.sleep(0.01)
        socket.arrived.set_result(1)
        receiving.cancel()  # before the loop has handed the reply over
        with pytest.raises(asyncio.CancelledError):
            await receiving
        subscriber._link.socket = None

    subscribed("tcp://127.0.0.1:1", scenario)


def test_a_silent_publisher_is_an_error_that_names_the_wait() -> None:
    async def scenario(subscriber: WeightSubscriber) -> None:
        with pytest.raises(PublisherUnavailable, match=r"no reply for 0\.1 s"):
            await subscriber.latest()

    subscribed("tcp://127.0.0.1:9", scenario, timeout_s=0.1)


def test_a_publisher_without_keys_serves_only_loopback() -> None:
    with pytest.raises(UserError, match="loopback"):
        WeightPublisher("tcp://0.0.0.0:5555")


def test_a_publisher_with_keys_serves_only_known_keys(tmp_path: Path) -> None:
    service, client, _ = generate(tmp_path)
    publisher = WeightPublisher("tcp://0.0.0.0:0", keys=service)
    publisher.publish(1, some_weights(elements=100))
    endpoint = publisher.endpoint.replace("0.0.0.0", "127.0.0.1")

    async def welcome(subscriber: WeightSubscriber) -> None:
        assert await update(subscriber) == 1

    async def turned_away(subscriber: WeightSubscriber) -> None:
        with pytest.raises(PublisherUnavailable):
            await subscriber.latest()

    subscribed(endpoint, welcome, keys=client)
    subscribed(endpoint, turned_away, timeout_s=0.3)
    publisher.close()


FOLLOW = """
import asyncio, sys
from actors.weights.subscriber import WeightSubscriber
from r3l.errors import WeightsError

async def main():
    subscriber = WeightSubscriber(sys.argv[1], timeout_s=60)
    try:
        await subscriber.latest()
    except WeightsError as error:
        print(error, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.system
@pytest.mark.parametrize(("body", "mib"), [(bytes(MIB), 700), (b"", 30)], ids=["large", "empty"])
def test_a_reply_without_end_takes_little_of_the_actors_memory(body: bytes, mib: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as false_publisher:
        endpoint = f"tcp://127.0.0.1:{false_publisher.getsockname()[1]}"
        actor = subprocess.Popen(
            [sys.executable, "-c", FOLLOW, endpoint], stdout=subprocess.PIPE, text=True
        )
        try:
            peer = accept(false_publisher)
            memory = Memory(actor.pid)
            data = frame(body) * max(1, MIB // len(frame(body)))
            closed = 0
            for _ in range(10):
                closed = closed or flood([peer], data, mib * MIB // 10 // len(data) * len(data))
                assert memory.grown() < 600
            assert closed and actor.stdout is not None
            assert "still incomplete" in actor.stdout.readline()
            assert memory.grown() < 600
        finally:
            actor.kill()


def test_a_set_that_cannot_be_meant_for_the_model_is_refused(publisher: WeightPublisher) -> None:
    publisher.publish(1, some_weights())

    async def scenario(subscriber: WeightSubscriber) -> None:
        subscriber.set_limit = 1000
        with pytest.raises(WeightsError, match=r"set has 12000128 bytes.*at most 1000") as refused:
            await subscriber.latest()
        assert refused.value.cause == "too_large" and subscriber.staged is None

    subscribed(publisher.endpoint, scenario)


def test_the_reply_to_a_cancelled_request_does_not_answer_the_next(
    publisher: WeightPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(1, some_weights())

    async def scenario(subscriber: WeightSubscriber) -> None:
        waits = asyncio.Event()

        async def reply_is_awaited() -> None:
            waits.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(subscriber._link, "receive", reply_is_awaited)
            cancelled = asyncio.create_task(subscriber.latest())
            await waits.wait()
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        assert await update(subscriber) == 1

    subscribed(publisher.endpoint, scenario)
