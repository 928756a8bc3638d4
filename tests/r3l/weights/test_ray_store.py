"""Versions as objects of Ray's store, with a Ray of plain objects."""

from typing import Any

import numpy as np
import pytest

from r3l.errors import WeightsError
from r3l.weights import ray_store
from r3l.weights.chunks import Chunk
from r3l.weights.keyed_sums import new_key
from r3l.weights.manifest import Layout, Manifest
from r3l.weights.patch import Patch
from r3l.weights.ray_store import KEPT, WHOLE, RayStore
from tests.actors.weights.fakes import FakeRay

LAYOUT = Layout.of([("w", "bfloat16", (1000,))])


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setattr(ray_store, "connect", lambda: ray)
    return ray


def versions(count: int) -> list[tuple[Manifest, list[Chunk]]]:
    data = np.random.default_rng(0).integers(0, 256, LAYOUT.total_bytes, np.uint8)
    chunk, made = Chunk.whole(data, 0), []
    for version in range(count):
        made.append((Manifest("o", version, LAYOUT, (chunk.checksum,)), [chunk]))
        data = data.copy()
        data[version] ^= 1
        chunk = chunk.next_version(data, version + 1, LAYOUT.width)
    return made


@pytest.mark.parametrize("key", [None, new_key()], ids=["plain", "keyed"])
def test_the_newest_versions_are_found_whole_or_as_patches(ray: FakeRay, key: Any) -> None:
    store, reader = RayStore("o", key), RayStore("o", key)
    made = versions(KEPT + 1)
    for manifest, chunks in made:
        store.hand_out(manifest, chunks)
    with pytest.raises(WeightsError, match="it has no version 0") as missed:
        reader.find(0, 1.0)
    assert missed.value.cause == "ray_other_version" and len(store._held) == KEPT
    bases, references = reader.find(2, 1.0)
    assert bases == [1]
    [body] = reader.get(2, [(0, 1, references[0])], 1.0)
    assert Patch.from_wire(body) == made[2][1][0].patches[-1]
    store.hand_out(Manifest("o", 5, LAYOUT, (0,)), [made[0][1][0]])
    bases, references = reader.find(5, 1.0)
    [body] = reader.get(5, [(0, WHOLE, references[0])], 1.0)
    assert bases == [WHOLE] and bytes(body) == made[0][1][0].data.tobytes()


def test_an_object_that_was_changed_or_moved_is_forged(ray: FakeRay) -> None:
    store, [(manifest, chunks)] = RayStore("o", new_key()), versions(1)
    store.hand_out(manifest, chunks)
    _, [reference] = store.find(0, 1.0)
    whole = ray.objects[reference]
    changed = whole[:-1] + bytes([whole[-1] ^ 1])
    for version, index, base, found in (
        (0, 0, WHOLE, changed),
        (0, 0, WHOLE, b""),
        (0, 0, WHOLE, ["a list"]),
        (1, 0, WHOLE, whole),
        (0, 1, WHOLE, whole),
        (0, 0, 0, whole),
    ):
        ray.objects[reference] = found
        with pytest.raises(WeightsError) as forged:
            store.get(version, [(index, base, reference)], 1.0)
        assert forged.value.cause == "forged"


def test_without_its_registry_or_its_objects_a_version_is_not_there(ray: FakeRay) -> None:
    store, [(manifest, chunks)] = RayStore("o"), versions(1)
    with pytest.raises(WeightsError, match="no registry") as missing:
        store.find(0, 1.0)
    assert missing.value.cause == "ray"
    store.hand_out(manifest, chunks)
    ray.lost = True
    with pytest.raises(WeightsError, match="its owner has ended") as lost:
        store.get(0, [(0, WHOLE, 0)], 1.0)
    assert lost.value.cause == "ray" and "more" not in str(lost.value)
