"""An actor that follows the journal of a publisher gets the bytes that others are sent."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.weights.journal_follower import JournalFollower
from actors.weights.subscriber import follow
from learner.publisher import WeightPublisher
from r3l.errors import UserError, WeightsError
from r3l.weights.journal import Journal
from tests.actors.weights.fakes import Engine, laid_out, some_weights, updated


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[WeightPublisher]:
    journal = Journal(tmp_path / "journal", versions=9)
    publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000, journal=journal)
    yield publisher
    publisher.close()


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[JournalFollower]:
    follower = JournalFollower(f"file://{tmp_path}/journal")
    yield follower
    follower.close()


def test_an_engine_is_given_every_version_of_a_journal_bit_for_bit(
    publisher: WeightPublisher, follower: JournalFollower
) -> None:
    engine, first = Engine(), some_weights()
    weights = [first, updated(first), updated(updated(first))]

    async def scenario() -> None:
        assert await follower.latest() is None  # nothing is there yet
        following = asyncio.create_task(follow(follower, engine, every_s=0.01))
        for version, tensors in enumerate(weights):
            publisher.publish(version, tensors)
            async with asyncio.timeout(60):
                while len(engine.loaded) <= version:
                    await asyncio.sleep(0.01)
        following.cancel()
        assert await follower.latest() is None

    asyncio.run(scenario())
    assert engine.loaded == [(v, laid_out(tensors)) for v, tensors in enumerate(weights)]


def test_a_damaged_journal_is_refused_and_a_path_must_be_absolute(
    publisher: WeightPublisher, follower: JournalFollower
) -> None:
    publisher.publish(3, some_weights())
    manifest = asyncio.run(follower.latest())
    assert manifest is not None and manifest.version == 3
    file = follower.journal.path(3)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(WeightsError, match="damaged"):
        asyncio.run(follower.fetch(manifest))
    file.write_bytes(b"")
    with pytest.raises(WeightsError, match="damaged"):
        asyncio.run(follower.latest())
    with pytest.raises(UserError, match="must look like file:///PATH/OF/journal"):
        JournalFollower("file://journal")
