"""Ranges of chunks: what is requested, what is kept, what is refused."""

from typing import Any

import pytest

from actors.weights.chunk_ranges import FIRST, SMALLEST, ChunkRange, ChunkRanges, RangeSize
from actors.weights.staging import StagedWeights
from r3l.errors import WeightsError
from r3l.weights.manifest import CHUNK_BYTES, Layout, Manifest

SIZE = 1024  # bytes of the only chunk
HEADER = {"full": True, "lengths": [SIZE]}


def manifest(version: int) -> Manifest:
    return Manifest("o", version, Layout.of([("w", "bfloat16", (SIZE // 2,))]), (0,))


def begun() -> tuple[ChunkRanges, StagedWeights]:
    requests, staged = ChunkRanges(), StagedWeights(manifest(1).layout, "o")
    requests.begin(manifest(1), staged)
    return requests, staged


def frame(size: int, value: int = 7) -> list[memoryview]:
    return [memoryview(bytes([value]) * size)]


def test_a_chunk_is_requested_piece_by_piece_and_whole_with_the_last() -> None:
    requests, _ = begun()
    assert requests.next(400) == ChunkRange(0, 0, 400)
    assert requests.next(400) is None  # its size is not known yet
    assert requests.add(ChunkRange(0, 0, 400), -1, HEADER, frame(400, 1)) is None
    assert [requests.next(400) for _ in range(3)] == [
        ChunkRange(0, 400, 400),
        ChunkRange(0, 800, 224),
        None,
    ]
    assert requests.add(ChunkRange(0, 400, 400), -1, HEADER, frame(400, 2)) is None
    whole = requests.add(ChunkRange(0, 800, 224), -1, HEADER, frame(224, 3))
    assert whole is not None and (whole.chunk, whole.full) == (0, True)
    assert whole.frames == [b"\1" * 400 + b"\2" * 400 + b"\3" * 224]


def test_patches_are_split_into_their_frames_again() -> None:
    requests, _ = begun()
    header = {"full": False, "lengths": [3, 0, 2]}
    assert requests.next(4) == ChunkRange(0, 0, 4)
    assert requests.add(ChunkRange(0, 0, 4), 0, header, [memoryview(b"abcd")]) is None
    whole = requests.add(ChunkRange(0, 4, 1), 0, header, [memoryview(b"e")])
    assert whole is not None and whole.frames == [b"abc", b"", b"de"] and not whole.full


def test_another_attempt_goes_on_after_the_last_byte_that_came() -> None:
    requests, staged = begun()
    requests.next(400)
    requests.add(ChunkRange(0, 0, 400), -1, HEADER, frame(400))
    assert requests.next(400) == ChunkRange(0, 400, 400)  # lost with its connection
    requests.begin(manifest(1), staged)
    assert requests.next(100) == ChunkRange(0, 400, 100)
    requests.begin(manifest(2), staged)
    assert requests.next(100) == ChunkRange(0, 0, 100)


def test_patches_for_bytes_that_are_staged_no_more_are_dropped() -> None:
    requests, staged = begun()
    staged.versions[0] = 0
    requests.next(2)
    requests.add(ChunkRange(0, 0, 2), 0, {"full": False, "lengths": [9]}, frame(2))
    staged.versions[0] = -1
    requests.begin(manifest(1), staged)
    assert requests.next(2) == ChunkRange(0, 0, 2)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"full": True, "lengths": [SIZE]}, 399),
        ({"full": True, "lengths": [1 << 60]}, 400),
        ({"full": True, "lengths": [500, 524]}, 400),
        ({"full": False, "lengths": [1 << 60]}, 400),
        ({"full": False, "lengths": [-600, 1000]}, 400),
        ({"full": False, "lengths": "many"}, 400),
        ({"full": None, "lengths": [SIZE]}, 400),
    ],
)
def test_a_reply_that_is_no_piece_is_refused_before_memory_is_taken_for_it(
    header: dict[str, Any], size: int
) -> None:
    requests, _ = begun()
    with pytest.raises(WeightsError, match="chunk 0") as refused:
        requests.add(ChunkRange(0, 0, 400), -1, header, frame(size))
    assert refused.value.cause == "malformed" and not requests._partial


def test_a_piece_of_other_frames_than_the_first_is_refused() -> None:
    requests, _ = begun()
    requests.add(ChunkRange(0, 0, 4), 0, {"full": False, "lengths": [9]}, frame(4))
    with pytest.raises(WeightsError, match="does not continue"):
        requests.add(ChunkRange(0, 4, 4), 0, {"full": False, "lengths": [8]}, frame(4))
    assert not requests._partial


def test_the_size_of_a_piece_follows_the_link() -> None:
    following = RangeSize()
    following.received(ChunkRange(0, 0, FIRST), FIRST, 0.1)
    assert following.size == 2 * FIRST
    following.received(ChunkRange(0, 0, FIRST), FIRST, 0.1)  # requested before
    following.received(ChunkRange(0, 0, 2 * FIRST), 5, 0.1)  # the end of a chunk
    following.received(ChunkRange(0, 0, 2 * FIRST), 2 * FIRST, 1.0)
    assert following.size == 2 * FIRST
    following.received(ChunkRange(0, 0, 2 * FIRST), 2 * FIRST, 3.0)
    assert following.size == FIRST
    for _ in range(20):
        following.received(ChunkRange(0, 0, following.size), following.size, 0.0)
    assert following.size == CHUNK_BYTES
    for _ in range(9):
        following.stalled()
    assert following.size == SMALLEST
