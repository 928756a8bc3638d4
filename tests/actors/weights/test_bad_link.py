"""Over a link that harms its bytes no wrong weights arrive, and afterwards the newest ones do."""

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.weights.subscriber import WeightSubscriber, follow
from buffer.wire.curve_keys import generate
from learner.publishing.publisher import WeightPublisher
from r3l.weights.manifest import Manifest
from tests.actors.weights.fakes import held, laid_out
from tests.buffer.wire.bad_link import BadLink

pytestmark = pytest.mark.system
BAD_S = 60.0 if os.environ.get("R3L_SOAK") else 4.0


@pytest.fixture(params=["open", "with keys"])
def keys(request: Any, tmp_path: Path) -> tuple[Path | None, Path | None]:
    """The publisher's and the subscriber's."""
    return (None, None) if request.param == "open" else generate(tmp_path)[:2]


def weights(version: int) -> list[tuple[str, torch.Tensor]]:
    return [("w", torch.arange(50_000, dtype=torch.float32) + (version if version % 7 else 0))]


def test_after_damaged_bytes_on_an_idle_connection_the_next_version_arrives(
    keys: tuple[Path | None, Path | None],
) -> None:
    publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000, keys=keys[0])

    async def scenario(link: BadLink) -> None:
        subscriber, loaded = (
            WeightSubscriber(link.endpoint, timeout_s=1.0, keys=keys[1]),
            list[int](),
        )

        async def load(path: str, manifest: Manifest) -> float:
            loaded.append(manifest.version)
            return 0.0

        following = asyncio.create_task(follow(subscriber, load, every_s=0.2))
        async with asyncio.timeout(120):
            for version in (1, 2):
                publisher.publish(version, weights(version))
                while version not in loaded:
                    await asyncio.sleep(0.02)
                link.spoil()
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        subscriber.close()

    with BadLink(publisher.endpoint) as link:
        link.bad = False
        asyncio.run(scenario(link))
    publisher.close()


def test_after_a_bad_link_the_newest_weights_arrive_bit_for_bit_and_none_were_wrong(
    keys: tuple[Path | None, Path | None],
) -> None:
    publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000, keys=keys[0])
    wrong, loaded = list[int](), list[int]()

    async def scenario(link: BadLink) -> None:
        subscriber = WeightSubscriber(link.endpoint, timeout_s=1.0, keys=keys[1])

        async def load(path: str, manifest: Manifest) -> float:
            loaded.append(manifest.version)
            if held(subscriber.staged) != laid_out(weights(manifest.version)):
                wrong.append(manifest.version)
            return 0.0

        following = asyncio.create_task(follow(subscriber, load, every_s=0.01))
        version, began = 0, time.monotonic()
        while time.monotonic() < began + (BAD_S if link.harmed > 3 else 120):
            publisher.publish(version := version + 1, weights(version))
            await asyncio.sleep(0.05)
        link.bad = False
        async with asyncio.timeout(120):
            while not loaded or loaded[-1] != version:
                assert not following.done()
                await asyncio.sleep(0.05)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        subscriber.close()
        print(f"{link.harmed} pieces harmed, {len(loaded)} of {version} versions loaded")

    with BadLink(publisher.endpoint, every=4) as link:
        asyncio.run(scenario(link))
    publisher.close()
    assert wrong == []
