"""The relay of a node, which stages each set once for all its engines."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.weights import relay
from actors.weights.relay import folder_of
from learner.publishing.publisher import WeightPublisher
from r3l.errors import WeightsError
from tests.actors.weights.fakes import laid_out, members, some_weights, updated


@pytest.fixture
def publisher() -> Iterator[WeightPublisher]:
    publisher = WeightPublisher("tcp://127.0.0.1:0", anchor_every=1000)
    yield publisher
    publisher.close()


def test_the_set_does_not_change_while_an_engine_loads_it(
    publisher: WeightPublisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LOADS_S", 0.2)

    async def scenario() -> None:
        old = some_weights(elements=1000)
        new = updated(old)
        async with members(publisher, tmp_path, 2) as (slow, quick):
            publisher.publish(1, old)
            manifest = await slow.subscriber.latest()
            assert manifest is not None
            async with slow.bring(manifest) as path:
                publisher.publish(2, new)
                assert await quick.update() == laid_out(new)
                assert Path(path).read_bytes() == laid_out(old)
            assert slow.failed == {"relay_late_engine": 1} and not quick.failed
            assert await slow.update() == laid_out(new)

    asyncio.run(scenario())


def test_a_version_that_was_replaced_meanwhile_is_asked_for_again(
    publisher: WeightPublisher, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with members(publisher, tmp_path, 1) as (member,):
            publisher.publish(1, some_weights(elements=100))
            manifest = await member.subscriber.latest()
            assert manifest is not None
            publisher.publish(2, some_weights(1, elements=100))
            with pytest.raises(WeightsError, match="no longer served"):
                async with member.bring(manifest):
                    pass
            assert await member.update() == laid_out(some_weights(1, elements=100))
            assert not member.failed

    asyncio.run(scenario())


def test_no_relay_is_trusted_in_a_folder_that_others_can_use(tmp_path: Path) -> None:
    endpoint = "tcp://127.0.0.1:5"
    folder = folder_of(endpoint, tmp_path)
    assert folder == folder_of(endpoint, tmp_path) != folder_of("tcp://127.0.0.1:6", tmp_path)
    folder.chmod(0o777)
    with pytest.raises(WeightsError, match="other users have rights to it"):
        folder_of(endpoint, tmp_path)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(WeightsError):
        folder_of(endpoint, tmp_path)
