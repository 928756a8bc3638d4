"""Loops in machine code: what numpy could only do in many passes, made by numba.

`prepare` compiles every loop, so that no update waits for it; the code is kept beside the source
or in the user's cache folder, where the next process finds it. A loop runs without Python's lock.
numba is imported by those processes alone that prepare or run a loop: it costs them 130 MB, and
vLLM's CPU engine does not start where it is loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any

log = logging.getLogger(__name__)


def read(element: str) -> str:
    """The type of a contiguous array that is only read; it may lie at any address."""
    return f"Array({element}, 1, 'C', True, None, False)"


def written(element: str) -> str:
    """The type of a contiguous array that is written; it may lie at any address."""
    return f"Array({element}, 1, 'C', False, None, False)"


class Compiled:
    """A function of arrays and numbers, in machine code from its first call on."""

    def __init__(self, function: Callable[..., Any], signatures: tuple[str, ...]) -> None:
        self.function, self.signatures = function, list(signatures)

    def __call__(self, *values: Any) -> Any:
        """Call it; it looks at no bounds, and takes nothing but what its signatures name."""
        return self.code(*values)

    @cached_property
    def code(self) -> Any:
        """What numba made of it; raises numba's error where it cannot."""
        from numba import njit

        try:
            return njit(self.signatures, nogil=True, cache=True)(self.function)
        except (RuntimeError, OSError) as error:
            log.warning(
                "%s: compiled again at every start, as it cannot be kept (%s); let NUMBA_CACHE_DIR "
                "name a folder that can be written",
                self.function.__qualname__, error,
            )  # fmt: skip
            return njit(self.signatures, nogil=True)(self.function)


def compiled(*signatures: str) -> Callable[[Callable[..., Any]], Compiled]:
    """Make a function `Compiled` for signatures such as `int64(int64)`, in numba's notation."""

    def make(function: Callable[..., Any]) -> Compiled:
        return Compiled(function, signatures)

    return make


def prepare(*loops: Compiled) -> None:
    """Compile these now: seconds the first time on a machine, later half of one."""
    for loop in loops:
        loop.code  # noqa: B018
