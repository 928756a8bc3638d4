"""A real buffer service for the learner's tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.buffer.fakes import Served


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts `r3l-buffer serve` on a store folder with further options."""
    with ExitStack() as stack:

        def start(store: Path, *options: str, **more: str) -> Served:
            served = Served(store, "tcp://127.0.0.1:0", *options, **more)
            stack.callback(lambda: served.process.poll() is None and served.kill())
            return served

        yield start
