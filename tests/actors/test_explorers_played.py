"""Explorers from end to end: the loop of an actor around a scripted engine, and a real buffer
service that hands it stored attempts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.actor import Actor
from actors.weights.subscriber import WeightSubscriber
from buffer import AsyncBufferClient, Draw
from r3l.actor_metrics import ActorMetrics
from r3l.algorithms.credit import group_masks
from r3l.config import load
from r3l.records import Group, Task
from tests.buffer.fakes import Served
from tests.r3l.fakes import Corridor, ScriptedPolicy

pytestmark = pytest.mark.system


class Engine(ScriptedPolicy):
    """Opens every door but each other second one."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.metrics, self.fingerprints, self.dead = ActorMetrics(), {}, False
        self.second_doors = 0

    def _answer(self, prompt: str) -> str:
        door = int(prompt.rpartition("door ")[2].split()[0])
        self.second_doors += door == 1
        return "x" if door == 1 and self.second_doors % 2 else "abc"[door]

    async def load(self, path: str, manifest: Any) -> float:
        return 0.0

    async def hash_first_weights(self) -> None:
        pass


async def played(endpoint: str, settings: tuple[str, ...]) -> tuple[Group, Group]:
    """The first group of a task, which is trained, and the one that begins with its history."""
    engine, subscriber = Engine(), WeightSubscriber("tcp://127.0.0.1:9")
    async with AsyncBufferClient(endpoint) as client:
        await client.add_tasks([Task("t0", "corridor", 0)])
        await client.set_version(0)
        config = load(None, list(settings))
        made = (engine, client, subscriber, lambda task: Corridor(), config)
        actor = Actor("a", *made)  # type: ignore[arg-type]
        running = asyncio.create_task(actor.run())
        try:
            first = await drawn(client, 0)
            engine.version = 1
            await client.commit(first.draw_id, 0, 1)
            second = await drawn(client, 1)
        finally:
            actor.stop.set()
            await running
            subscriber.close()
    return first.groups[0], second.groups[0]


async def drawn(client: AsyncBufferClient, version: int) -> Draw:
    async with asyncio.timeout(120):
        while (draw := await client.draw(1, version)) is None:
            await asyncio.sleep(0.05)
    return draw


@pytest.mark.parametrize("explorer", ["prefix", "partial", "in_context"])
def test_an_actor_plays_a_group_that_was_handed_a_stored_attempt(
    explorer: str, tmp_path: Path
) -> None:
    settings = (
        "algorithm=grpo",
        "algorithm.group_size=2",
        "learner.groups_per_step=1",
        "buffer.max_staleness=0",
        f"explorer={explorer}",
        "explorer.share=1",
        "explorer.threshold=0.9",
    )
    service = Served(tmp_path / "store", "tcp://127.0.0.1:0", *settings)
    try:
        first, second = asyncio.run(played(service.endpoint, settings))
    finally:
        service.stop()
    assert sorted(first.rewards.tolist()) == [0.0, 1.0]
    assert all(one.extra.source == "" and one.extra.start == 0 for one in first.trajectories)
    stored = {f"{first.group_id}/base/{one.slot}": one for one in first.trajectories}
    assert len(second.trajectories) == 2
    [source] = {one.extra.source for one in second.trajectories}
    shown = stored[source]
    masks = group_masks(second.trajectories, mask_prefix=False)
    for one, mask in zip(second.trajectories, masks, strict=True):
        begun = one.extra.start
        if explorer == "in_context":
            assert shown.reward == 0.0 and begun == 0 and "It failed." in one.extra.context
            continue
        assert shown.reward == 1.0 or explorer == "partial"
        assert begun in (1, 2) and one.actions[:begun] == shown.actions[:begun]
        own = int(one.step_spans[begun, 0])
        assert one.token_ids[:own].tolist() == shown.token_ids[:own].tolist()
        assert not mask[:own].any() and mask[own:].any()
        assert one.step_versions[begun:].tolist() == [1] * (3 - begun)
