"""A published chunk: the patches that lead to it, and when it is sent whole."""

import numpy as np
import pytest

from r3l.errors import WeightsError
from r3l.weights.chunks import HISTORY, Chunk, assemble, check_chunk
from r3l.weights.manifest import Layout, Manifest
from r3l.weights.patch import apply

RNG = np.random.default_rng(0)


def next_bytes(data: np.ndarray, share: float) -> np.ndarray:
    """A share of the elements of two bytes moves to other values."""
    elements = data.view("<u2").copy()
    chosen = RNG.random(len(elements)) < share
    elements[chosen] += RNG.integers(1, 1000, chosen.sum(), dtype="<u2")
    return elements.view(np.uint8)


@pytest.fixture
def first() -> Chunk:
    return Chunk.whole(RNG.integers(0, 256, 20_000, dtype=np.uint8), 1)


def test_the_patches_since_a_version_lead_to_the_chunk(first: Chunk) -> None:
    second = first.next_version(next_bytes(first.data, 0.01), 2, width=2)
    third = second.next_version(next_bytes(second.data, 0.01), 3, width=2)
    for held in (first, second):
        data, version = held.data.copy(), held.version
        for patch in third.since(held.version) or ():
            apply(patch, data, version=version)
            version = patch.version
        assert version == 3 and np.array_equal(data, third.data)
    assert third.since(3) == () and third.since(0) is None
    assert third.checksum == Chunk.whole(third.data, 3).checksum


def test_a_chunk_with_many_changes_is_sent_whole(first: Chunk) -> None:
    second = first.next_version(next_bytes(first.data, 0.01), 2, width=2)
    third = second.next_version(next_bytes(second.data, 0.9), 3, width=2)
    assert third.patches == () and third.since(2) is None


def test_the_patches_of_a_chunk_stay_smaller_than_a_share_of_it(first: Chunk) -> None:
    chunk, kept = first, []
    for version in range(2, 30):
        chunk = chunk.next_version(next_bytes(chunk.data, 0.03), version, width=2)
        kept.append(sum(len(patch.body) for patch in chunk.patches))
    assert max(kept) <= HISTORY * len(chunk.data) < 2 * max(kept)
    assert 1 < len(chunk.patches) < 28 and chunk.since(28) == chunk.patches[-1:]


def test_a_chunk_is_its_pieces_with_zeros_between_them() -> None:
    pieces = [(0, np.array([1, 2], np.uint8)), (4, np.array([3], np.uint8))]
    assert assemble(pieces, 6).tolist() == [1, 2, 0, 0, 3, 0]


def test_a_chunk_other_than_the_manifests_is_refused(first: Chunk) -> None:
    layout = Layout.of([("a", "bfloat16", (10_000,))])
    manifest = Manifest("p", 1, layout, (first.checksum,))
    check_chunk(first.data, manifest, 0)
    with pytest.raises(WeightsError, match="weights 1: chunk 0 is damaged"):
        check_chunk(next_bytes(first.data, 0.001), manifest, 0)
