"""Loops in machine code: what numpy could only do in many passes, made by numba.

A loop is compiled when its module is imported, so that no update ever waits for it, and kept
beside the source or in the user's cache folder, where the next process finds it. It runs without
Python's lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit, types

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
__all__ = ["compiled", "read", "types", "written"]


def read(element: Any) -> Any:
    """The type of a contiguous array that is only read; it may lie at any address."""
    return types.Array(element, 1, "C", readonly=True, aligned=False)


def written(element: Any) -> Any:
    """The type of a contiguous array that is written; it may lie at any address."""
    return types.Array(element, 1, "C", readonly=False, aligned=False)


def compiled(*signatures: Any) -> Callable[[Function], Function]:
    """Compile a function for these signatures, such as `types.int64(read(types.uint8))`.

    It takes nothing else, and looks at no bounds. Raises numba's error where it cannot be compiled.
    """

    def compile_now(function: Function) -> Function:
        made: Function
        try:
            made = njit(list(signatures), nogil=True, cache=True)(function)
        except (RuntimeError, OSError) as error:
            log.warning(
                "%s: compiled again at every start, as it cannot be kept (%s); let NUMBA_CACHE_DIR "
                "name a folder that can be written",
                function.__qualname__, error,
            )  # fmt: skip
            made = njit(list(signatures), nogil=True)(function)
        return made

    return compile_now
