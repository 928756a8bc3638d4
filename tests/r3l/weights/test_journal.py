"""The weight journal: any version that it holds is rebuilt bit for bit."""

from pathlib import Path

import numpy as np
import pytest

from r3l.errors import UserError
from r3l.weights import manifest as layouts
from r3l.weights.chunks import Chunk
from r3l.weights.journal import Journal
from r3l.weights.manifest import Layout, Manifest
from tests.r3l.files.made import flips

SIZE = 64_000  # bytes of a set


class Sets:
    """Versions of one set of 8 chunks, of which a few elements change each time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, share: float = 0.01) -> None:
        monkeypatch.setattr(layouts, "CHUNK_BYTES", 8_000)
        self.rng, self.share = np.random.default_rng(0), share
        self.layout = Layout.of([("w", "bfloat16", (SIZE // 2,))])
        self.data = {0: self.rng.integers(0, 256, SIZE, dtype=np.uint8)}
        self.chunks = [Chunk.whole(self._cut(0, i), 0) for i in range(8)]

    def _cut(self, version: int, index: int) -> np.ndarray:
        return self.data[version][self.layout.span(index)].copy()

    def make(self, version: int, before: int) -> None:
        elements = self.data[before].view("<u2").copy()
        chosen = self.rng.random(len(elements)) < self.share
        elements[chosen] ^= 1
        self.data[version] = elements.view(np.uint8)
        self.chunks = [
            chunk.next_version(self._cut(version, i), version, 2)
            for i, chunk in enumerate(self.chunks)
        ]

    @property
    def manifest(self) -> Manifest:
        version = self.chunks[0].version
        return Manifest("o", version, self.layout, tuple(c.checksum for c in self.chunks))

    def fill(self, journal: Journal, last: int) -> None:
        journal.append(self.manifest, self.chunks)
        for version in range(1, last + 1):
            self.make(version, version - 1)
            journal.append(self.manifest, self.chunks)


@pytest.fixture
def sets(monkeypatch: pytest.MonkeyPatch) -> Sets:
    return Sets(monkeypatch)


def test_every_version_is_rebuilt_bit_for_bit_and_takes_a_share_of_the_set(
    sets: Sets, tmp_path: Path
) -> None:
    sets.fill(Journal(tmp_path / "journal", versions=99), 9)
    journal = Journal(tmp_path / "journal")
    assert journal.held() == list(range(10))
    for version in (9, 0, 4):
        manifest, data = journal.rebuild(version)
        assert manifest.version == version and np.array_equal(data, sets.data[version])
    assert journal.path(0).stat().st_size > SIZE > 8 * journal.path(1).stat().st_size
    assert manifest.digest == Manifest("x", 7, sets.layout, manifest.checksums).digest


@pytest.mark.parametrize("share", [0.01, 0.9], ids=["patches", "whole chunks"])
def test_the_newest_versions_stay_with_what_they_build_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: float
) -> None:
    sets, journal = Sets(monkeypatch, share), Journal(tmp_path, versions=3)
    sets.fill(journal, 5)
    assert journal.held() == ([0, 1, 2, 3, 4, 5] if share < 0.5 else [3, 4, 5])
    for index, chunk in enumerate(sets.chunks):  # the publisher's anchor
        sets.chunks[index] = Chunk.whole(chunk.data, 6)
    sets.data[6] = sets.data[5]
    journal.append(sets.manifest, sets.chunks)
    for version in (7, 8):
        sets.make(version, version - 1)
        journal.append(sets.manifest, sets.chunks)
    assert journal.held() == [6, 7, 8]
    assert np.array_equal(journal.rebuild(8)[1], sets.data[8])


def test_a_gap_is_one_line_that_names_what_is_missing(sets: Sets, tmp_path: Path) -> None:
    journal = Journal(tmp_path, versions=99)
    with pytest.raises(UserError, match=r"holds no versions; to keep"):
        journal.rebuild(3)
    sets.fill(journal, 6)
    journal.path(3).unlink()
    assert np.array_equal(journal.rebuild(2)[1], sets.data[2])
    with pytest.raises(UserError, match=r"version 5 .*version 3, .*missing"):
        journal.rebuild(5)
    with pytest.raises(UserError, match=r"version 3 is missing .* nearest 2 and 4"):
        journal.rebuild(3)


@pytest.mark.parametrize("place", [20, -20, None], ids=["head", "patch", "cut off"])
def test_a_damaged_file_is_named(sets: Sets, tmp_path: Path, place: int | None) -> None:
    journal = Journal(tmp_path, versions=99)
    sets.fill(journal, 2)
    data = bytearray(journal.path(1).read_bytes())
    if place is None:
        data.pop()
    else:
        data[place] ^= 1
    journal.path(1).write_bytes(data)
    with pytest.raises(UserError, match=r"000001\.weights: damaged"):
        journal.rebuild(2)


def test_no_flipped_bit_of_a_file_rebuilds_other_weights(sets: Sets, tmp_path: Path) -> None:
    journal = Journal(tmp_path, versions=99)
    sets.fill(journal, 2)
    for version in (0, 1):  # an anchor and a patch
        path, unseen = journal.path(version), 0
        whole = path.read_bytes()
        head = 16 + int.from_bytes(whole[:8], "big")
        for content in flips(whole[:head]):
            path.write_bytes(content + whole[head:])
            try:
                unseen += not np.array_equal(journal.rebuild(2)[1], sets.data[2])
            except UserError as error:
                assert path.name in str(error)
        path.write_bytes(whole)
        assert unseen == 0


def test_a_resumed_learner_goes_on_with_the_same_journal(sets: Sets, tmp_path: Path) -> None:
    sets.fill(Journal(tmp_path, versions=99), 5)
    times = {v: Journal(tmp_path).path(v).stat().st_mtime_ns for v in range(6)}
    again = Journal(tmp_path, versions=99)  # from a checkpoint at 3: its first set is whole
    sets.chunks = [Chunk.whole(sets._cut(3, i), 3) for i in range(8)]
    assert again.append(sets.manifest, sets.chunks) == 0
    sets.data[9] = sets.data[5]
    kept = sets.data[4]
    sets.chunks = [chunk.next_version(sets._cut(4, i), 4, 2) for i, chunk in enumerate(sets.chunks)]
    assert again.append(sets.manifest, sets.chunks) == 0 and again.held() == [0, 1, 2, 3, 4, 5]
    assert {v: again.path(v).stat().st_mtime_ns for v in range(6)} == times
    sets.make(5, 4)  # another version 5
    assert again.append(sets.manifest, sets.chunks) > 0
    assert np.array_equal(again.rebuild(5)[1], sets.data[5])
    assert np.array_equal(again.rebuild(4)[1], kept)
    assert not np.array_equal(sets.data[5], sets.data[9])


def test_other_weights_of_a_version_remove_the_ones_that_followed(
    sets: Sets, tmp_path: Path
) -> None:
    sets.fill(Journal(tmp_path, versions=99), 5)
    again = Journal(tmp_path, versions=99)
    sets.data[3] = sets.data[2][::-1].copy()
    sets.chunks = [Chunk.whole(sets._cut(3, i), 3) for i in range(8)]
    again.append(sets.manifest, sets.chunks)
    assert again.held() == [0, 1, 2, 3]
    assert np.array_equal(again.rebuild(3)[1], sets.data[3])


def test_after_a_version_that_could_not_be_written_comes_an_anchor(
    sets: Sets, tmp_path: Path
) -> None:
    journal = Journal(tmp_path, versions=99)
    sets.fill(journal, 2)
    journal.path(3).mkdir()
    sets.make(3, 2)
    with pytest.raises(OSError):
        journal.append(sets.manifest, sets.chunks)
    journal.path(3).rmdir()
    assert journal.held() == [0, 1, 2]
    sets.make(4, 3)
    assert journal.append(sets.manifest, sets.chunks) > SIZE
    assert np.array_equal(journal.rebuild(4)[1], sets.data[4])
