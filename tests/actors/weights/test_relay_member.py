"""Engines of one node, and the relay that fetches for all of them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.weights.relay import SOCKET, folder_of
from actors.weights.relay_member import check_file
from actors.weights.staging import StagedWeights
from actors.weights.subscriber import follow
from learner.publishing.publisher import WeightPublisher
from r3l.errors import WeightsError
from r3l.weights.manifest import Manifest
from tests.actors.weights.fakes import (
    Engine,
    Member,
    Tensors,
    laid_out,
    members,
    some_weights,
    updated,
)

ELEMENTS = 6_000_000


@pytest.fixture
def publisher() -> Iterator[WeightPublisher]:
    publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000)
    yield publisher
    publisher.close()


def received(node: list[Member]) -> int:
    """Bytes that came from the publisher to all of them."""
    each = [member.subscriber.metrics for member in node]
    return sum(one.weights_full_bytes + one.weights_patch_bytes for one in each)


def test_a_node_fetches_each_version_once_and_all_its_engines_load_it(
    publisher: WeightPublisher, tmp_path: Path
) -> None:
    async def scenario() -> None:
        weights = some_weights(elements=ELEMENTS)
        async with members(publisher, tmp_path, 3) as node:
            for version in (1, 2):
                before = received(node)
                figures = publisher.publish(version, weights)
                for loaded in await asyncio.gather(*(member.update() for member in node)):
                    assert loaded == laid_out(weights)
                sent = figures["full_bytes" if version == 1 else "patch_bytes"]
                assert sent <= received(node) - before < 1.1 * sent
                weights = updated(weights)
            assert [bool(member.from_relay.relay) for member in node].count(True) == 1
            assert not any(member.failed for member in node)
            assert not any(member.subscriber.staged for member in node)

    asyncio.run(scenario())


class FalseRelay:
    """Answers each member with the same lines, after it has the lock of the folder."""

    def __init__(self, folder: Path, *lines: dict[str, Any], again: bool = False) -> None:
        self.folder, self.lines, self.again = folder, lines, again

    async def __aenter__(self) -> None:
        self.server = await asyncio.start_unix_server(self.answer, self.folder / SOCKET)

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        (self.folder / SOCKET).unlink()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        while True:
            for line in self.lines:
                writer.write(json.dumps(line).encode() + b"\n")
            await asyncio.sleep(0.05)
            if not self.again:
                break
        if not self.lines:
            await reader.read()
        writer.close()


def test_a_relay_that_lies_dies_or_is_slow_is_counted_and_the_publisher_serves_its_engines(
    publisher: WeightPublisher, tmp_path: Path
) -> None:
    weights = some_weights(elements=1000)
    publisher.publish(1, weights)
    assert publisher._manifest is not None
    wrong = StagedWeights(publisher._manifest.layout, publisher.origin)  # zeros
    short = tmp_path / "short"
    short.write_bytes(b"12")
    cases = {
        "relay_wrong": FalseRelay(tmp_path, {"came": 1}, {"path": wrong.path}),
        "relay_wrong ": FalseRelay(tmp_path, {"path": str(short)}),
        "relay_lost": FalseRelay(tmp_path, {"path": "/no/such/file"}),
        "relay_lost ": FalseRelay(tmp_path, {"came": 1}),  # then it ends
        "relay_lost  ": FalseRelay(tmp_path, {"error": "no room", "cause": "checksum"}),
        "relay_slow": FalseRelay(tmp_path, {"came": 1}, again=True),
        "relay_slow ": FalseRelay(tmp_path),
    }

    async def scenario() -> None:
        for cause, liar in cases.items():
            liar.folder = folder_of(publisher.endpoint, tmp_path)
            async with liar, members(publisher, tmp_path, 1, timeout_s=0.5) as (member,):
                member.subscriber.timeout_s = 0.5
                manifest = await member.subscriber.latest()
                assert manifest is not None
                async with member.bring(manifest) as path:
                    assert Path(path).read_bytes() == laid_out(weights), cause
                assert member.failed == {cause.strip(): 1}
                async with member.bring(manifest):  # it is not asked again so soon
                    assert member.failed == {cause.strip(): 1}

    asyncio.run(scenario())
    wrong.close()


RELAY = """
import asyncio, sys
from pathlib import Path
from actors.weights.relay_member import FromRelay
from actors.weights.subscriber import WeightSubscriber

async def main():
    subscriber = WeightSubscriber(sys.argv[1])
    transport = FromRelay(subscriber, None, Path(sys.argv[2]))
    async with transport.bring(await subscriber.latest()):
        print("relay" if transport.relay else "member", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.system
def test_after_the_relays_death_an_engine_keeps_its_set_and_another_becomes_the_relay(
    publisher: WeightPublisher, tmp_path: Path
) -> None:
    weights = some_weights(elements=1000)
    publisher.publish(1, weights)
    command = [sys.executable, "-c", RELAY, publisher.endpoint, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "relay\n"

    async def scenario() -> None:
        async with members(publisher, tmp_path, 2) as (member, other):
            manifest = await member.subscriber.latest()
            assert manifest is not None
            async with member.bring(manifest) as path:
                assert member.from_relay.relay is None
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                assert Path(path).read_bytes() == laid_out(weights)
            assert await other.update() == laid_out(weights)
            assert other.from_relay.relay is not None and not other.failed
            assert await member.update() == laid_out(weights) and not member.failed

    asyncio.run(scenario())


def test_follow_loads_what_the_relay_staged(publisher: WeightPublisher, tmp_path: Path) -> None:
    weights: Tensors = some_weights(elements=1000)
    publisher.publish(3, weights)

    async def scenario() -> None:
        engine = Engine()
        async with members(publisher, tmp_path, 1) as (member,):
            following = asyncio.create_task(
                follow(member.subscriber, engine.load, member.bring, every_s=0.01)
            )
            while not engine.loaded:
                await asyncio.sleep(0.01)
            following.cancel()
            assert engine.loaded == [(3, laid_out(weights))]
            assert member.subscriber.metrics.weights_updates == 1

    asyncio.run(scenario())


def test_a_file_is_the_set_only_if_every_chunk_is(
    publisher: WeightPublisher, tmp_path: Path
) -> None:
    weights = some_weights(elements=ELEMENTS)
    publisher.publish(1, weights)
    manifest: Manifest | None = publisher._manifest
    assert manifest is not None
    data = bytearray(laid_out(weights))
    path = tmp_path / "set"
    path.write_bytes(data)
    with path.open("rb") as file:
        check_file(file.fileno(), manifest)
    data[-1] ^= 1
    path.write_bytes(data)
    with path.open("rb") as file, pytest.raises(WeightsError, match="chunk 1 is damaged") as error:
        check_file(file.fileno(), manifest)
    assert error.value.cause == "relay_wrong"
