"""Keys that stay sorted while they come and go."""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

K = TypeVar("K", bound=Any)
CHUNK = 512  # keys of a chunk, which is split at twice as many


class SortedKeys(Generic[K]):
    """Different keys, in ascending order. `add` and `discard` take about as long for 100 keys as
    for 100,000, since the keys are in chunks of a few hundred. `width`: how many numbers each key
    has."""

    def __init__(self, width: int = 0) -> None:
        self._chunks: list[list[K]] = []
        self._largest: list[K] = []  # of each chunk
        self._numbers: list[array[float]] = []  # by chunk; the numbers of a key stand together
        self._length, self._width = 0, width

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        """Yields the keys. They must not change meanwhile."""
        for chunk in self._chunks:
            yield from chunk

    def __contains__(self, key: Any) -> bool:
        at = bisect_left(self._largest, key)
        if at == len(self._chunks):
            return False
        chunk = self._chunks[at]
        return bool(chunk[bisect_left(chunk, key)] == key)

    def __getitem__(self, place: int) -> K:
        """Returns the key at a place from 0 on."""
        for chunk in self._chunks:
            if 0 <= place < len(chunk):
                return chunk[place]
            place -= len(chunk)
        raise IndexError(place)

    def numbers(self) -> npt.NDArray[np.float64]:
        """Returns a copy of the numbers, [keys, width], in the order of the keys."""
        chunks = [np.frombuffer(chunk) for chunk in self._numbers]
        joined: npt.NDArray[np.float64] = np.concatenate([np.empty(0), *chunks])
        return joined.reshape(self._length, self._width)

    def add(self, key: K, numbers: Sequence[float] = ()) -> None:
        """Adds a key, with `width` numbers. It must not be there."""
        self._length += 1
        own = array("d", numbers)
        if not self._chunks:
            self._chunks, self._largest, self._numbers = [[key]], [key], [own]
            return
        at = min(bisect_left(self._largest, key), len(self._chunks) - 1)
        chunk, held = self._chunks[at], self._numbers[at]
        place = bisect_left(chunk, key)
        chunk.insert(place, key)
        held[place * self._width : place * self._width] = own
        if len(chunk) > 2 * CHUNK:
            middle = CHUNK * self._width
            self._chunks[at : at + 1] = [chunk[:CHUNK], chunk[CHUNK:]]
            self._numbers[at : at + 1] = [held[:middle], held[middle:]]
            self._largest.insert(at, chunk[CHUNK - 1])
            at += 1
        self._largest[at] = self._chunks[at][-1]

    def discard(self, key: K) -> None:
        """Removes a key, if it is there."""
        at = bisect_left(self._largest, key)
        if at == len(self._chunks):
            return
        chunk = self._chunks[at]
        place = bisect_left(chunk, key)
        if chunk[place] != key:
            return
        self._length -= 1
        del chunk[place]
        del self._numbers[at][place * self._width : (place + 1) * self._width]
        if chunk:
            self._largest[at] = chunk[-1]
        else:
            del self._chunks[at], self._largest[at], self._numbers[at]

    def below(self, key: K) -> list[K]:
        """Returns the keys that are smaller than this one."""
        found = list[K]()
        for chunk in self._chunks:
            end = bisect_left(chunk, key)
            found += chunk[:end]
            if end < len(chunk):
                break
        return found

    def between(self, low: K, high: K) -> list[K]:
        """Returns the keys from `low` on that are smaller than `high`."""
        found = list[K]()
        for chunk in self._chunks[bisect_left(self._largest, low) :]:
            start, end = bisect_left(chunk, low), bisect_left(chunk, high)
            found += chunk[start:end]
            if end < len(chunk):
                break
        return found

    def count_below(self, key: K) -> int:
        """Returns how many keys are smaller than this one."""
        at = bisect_left(self._largest, key)
        count = sum(map(len, self._chunks[:at]))
        return count + (bisect_left(self._chunks[at], key) if at < len(self._chunks) else 0)
