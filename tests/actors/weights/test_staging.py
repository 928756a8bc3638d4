"""The staged set in shared memory: chunk by chunk, and gone with its last user."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.weights.staging import UNKNOWN, StagedWeights
from r3l.errors import WeightsError
from r3l.weights.chunks import Chunk
from r3l.weights.manifest import Layout, Manifest

LAYOUT = Layout.of([("a", "bfloat16", (512,))])
FIRST = Chunk.whole(np.arange(1024).astype(np.uint8), 1)
SECOND = FIRST.next_version(FIRST.data ^ (np.arange(1024) == 300).astype(np.uint8), 2, width=2)


def test_the_staged_set_is_freed_with_its_last_user() -> None:
    staged = StagedWeights(Layout.of([("a", "float32", (4,))]), "p")
    with open(staged.path, "rb") as reader:
        staged.close()
        assert len(reader.read()) == 64  # still there for who maps it
    assert not os.path.exists(staged.path)


@pytest.fixture
def staged() -> Iterator[StagedWeights]:
    """A set of one chunk, of which nothing is known."""
    staged = StagedWeights(LAYOUT, "p")
    yield staged
    staged.close()


def made(version: int, chunk: Chunk) -> Manifest:
    return Manifest("p", version, LAYOUT, (chunk.checksum,))


def test_a_chunk_is_replaced_and_then_patched(staged: StagedWeights) -> None:
    assert staged.missing(made(1, FIRST)) == [0]
    staged.replace(0, made(1, FIRST), memoryview(FIRST.data))
    assert staged.missing(made(1, FIRST)) == [] and staged.missing(made(2, SECOND)) == [0]
    staged.patch(0, made(2, SECOND), [memoryview(p.to_wire()) for p in SECOND.patches])
    assert staged.versions == [2] and Path(staged.path).read_bytes() == SECOND.data.tobytes()


def test_a_chunk_of_another_size_or_checksum_is_refused_and_the_held_one_kept(
    staged: StagedWeights,
) -> None:
    staged.replace(0, made(1, FIRST), memoryview(FIRST.data))
    short = Chunk.whole(FIRST.data[:-2], 2)
    for data, manifest in ((short.data, made(2, short)), (FIRST.data, made(2, SECOND))):
        with pytest.raises(WeightsError) as caught:
            staged.replace(0, manifest, memoryview(data))
        assert caught.value.cause == "checksum"
    assert staged.versions == [1] and Path(staged.path).read_bytes() == FIRST.data.tobytes()


def test_a_chunk_is_unknown_after_a_patch_that_does_not_lead_to_the_manifest(
    staged: StagedWeights,
) -> None:
    frames = [memoryview(p.to_wire()) for p in SECOND.patches]
    for given, manifest, cause in (
        ([], made(2, SECOND), "patch_damaged"),
        (frames, made(3, SECOND), "patch_damaged"),
        (frames, made(2, FIRST), "patch_damaged"),
        (frames + frames, made(2, SECOND), "wrong_base"),
    ):
        staged.replace(0, made(1, FIRST), memoryview(FIRST.data))
        with pytest.raises(WeightsError) as caught:
            staged.patch(0, manifest, given)
        assert caught.value.cause == cause and staged.versions == [UNKNOWN]
        assert staged.missing(made(2, SECOND)) == [0]
