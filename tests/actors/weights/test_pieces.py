"""Pieces of chunks: what is requested, what is kept, what is refused."""

from typing import Any

import pytest

from actors.weights.pieces import FIRST, SMALLEST, Pace, Piece, Pieces
from actors.weights.staging import StagedWeights
from r3l.errors import WeightsError
from r3l.weights.manifest import CHUNK_BYTES, Layout, Manifest

SIZE = 1024  # bytes of the only chunk
HEADER = {"full": True, "lengths": [SIZE]}


def manifest(version: int) -> Manifest:
    return Manifest("o", version, Layout.of([("w", "bfloat16", (SIZE // 2,))]), (0,))


def begun() -> tuple[Pieces, StagedWeights]:
    pieces, staged = Pieces(), StagedWeights(manifest(1).layout, "o")
    pieces.begin(manifest(1), staged)
    return pieces, staged


def frame(size: int, value: int = 7) -> list[memoryview]:
    return [memoryview(bytes([value]) * size)]


def test_a_chunk_is_requested_piece_by_piece_and_whole_with_the_last() -> None:
    pieces, _ = begun()
    assert pieces.next(400) == Piece(0, 0, 400)
    assert pieces.next(400) is None  # its size is not known yet
    assert pieces.add(Piece(0, 0, 400), -1, HEADER, frame(400, 1)) is None
    assert [pieces.next(400) for _ in range(3)] == [Piece(0, 400, 400), Piece(0, 800, 224), None]
    assert pieces.add(Piece(0, 400, 400), -1, HEADER, frame(400, 2)) is None
    whole = pieces.add(Piece(0, 800, 224), -1, HEADER, frame(224, 3))
    assert whole is not None and (whole.chunk, whole.full) == (0, True)
    assert whole.frames == [b"\1" * 400 + b"\2" * 400 + b"\3" * 224]


def test_patches_are_split_into_their_frames_again() -> None:
    pieces, _ = begun()
    header = {"full": False, "lengths": [3, 0, 2]}
    assert pieces.next(4) == Piece(0, 0, 4)
    assert pieces.add(Piece(0, 0, 4), 0, header, [memoryview(b"abcd")]) is None
    whole = pieces.add(Piece(0, 4, 1), 0, header, [memoryview(b"e")])
    assert whole is not None and whole.frames == [b"abc", b"", b"de"] and not whole.full


def test_another_attempt_goes_on_after_the_last_byte_that_came() -> None:
    pieces, staged = begun()
    pieces.next(400)
    pieces.add(Piece(0, 0, 400), -1, HEADER, frame(400))
    assert pieces.next(400) == Piece(0, 400, 400)  # lost with its connection
    pieces.begin(manifest(1), staged)
    assert pieces.held == 400 and pieces.next(100) == Piece(0, 400, 100)
    pieces.begin(manifest(2), staged)
    assert pieces.held == 0 and pieces.next(100) == Piece(0, 0, 100)


def test_patches_for_bytes_that_are_staged_no_more_are_dropped() -> None:
    pieces, staged = begun()
    staged.versions[0] = 0
    pieces.next(2)
    pieces.add(Piece(0, 0, 2), 0, {"full": False, "lengths": [9]}, frame(2))
    staged.versions[0] = -1
    pieces.begin(manifest(1), staged)
    assert pieces.held == 0


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
    pieces, _ = begun()
    with pytest.raises(WeightsError, match="no piece of chunk 0") as refused:
        pieces.add(Piece(0, 0, 400), -1, header, frame(size))
    assert refused.value.cause == "malformed" and pieces.held == 0


def test_a_piece_of_other_frames_than_the_first_is_refused() -> None:
    pieces, _ = begun()
    pieces.add(Piece(0, 0, 4), 0, {"full": False, "lengths": [9]}, frame(4))
    with pytest.raises(WeightsError, match="does not fit"):
        pieces.add(Piece(0, 4, 4), 0, {"full": False, "lengths": [8]}, frame(4))
    assert pieces.held == 0


def test_the_size_of_a_piece_follows_the_link() -> None:
    pace = Pace()
    pace.came(Piece(0, 0, FIRST), FIRST, 0.1)
    assert pace.size == 2 * FIRST
    pace.came(Piece(0, 0, FIRST), FIRST, 0.1)  # requested before
    pace.came(Piece(0, 0, 2 * FIRST), 5, 0.1)  # the end of a chunk
    pace.came(Piece(0, 0, 2 * FIRST), 2 * FIRST, 1.0)
    assert pace.size == 2 * FIRST
    pace.came(Piece(0, 0, 2 * FIRST), 2 * FIRST, 3.0)
    assert pace.size == FIRST
    for _ in range(20):
        pace.came(Piece(0, 0, pace.size), pace.size, 0.0)
    assert pace.size == CHUNK_BYTES
    for _ in range(9):
        pace.stalled()
    assert pace.size == SMALLEST
