"""Settings of all tests."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No test is timed: what takes longer on a busy machine has not failed. `make test` tries the same
# examples every time; `make nightly` tries new ones (--hypothesis-profile=random).
settings.register_profile("r3l", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("r3l")

# A metric that is missing from learner/metrics/tags.py: an error here and in every process started.
UNKNOWN_METRIC = "error:unknown metric"
os.environ["PYTHONWARNINGS"] = UNKNOWN_METRIC
# Before torch is imported. Threads would spin while other tests have their cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# The folders whose files with real processes come first.
FIRST = ("actors", "system")
# A command in the background may ignore Ctrl-C; what the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """Puts back what a command changes of the process in which a test calls it."""
    umask, path = os.umask(0o022), sys.path[:]
    os.umask(umask)
    handlers = {s: signal.getsignal(s) for s in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield
    os.umask(umask)
    sys.path[:] = path
    for signum, handler in handlers.items():
        if signal.getsignal(signum) is not handler:
            signal.signal(signum, handler)


def pytest_configure(config: object) -> None:
    if hasattr(config, "workerinput"):  # the process that starts the workers collects nothing
        gc.disable()  # until all is imported: a fourth of what collecting the tests takes
    config.addinivalue_line("filterwarnings", UNKNOWN_METRIC)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with real processes come first, then those of many tests: no worker is left alone with
    a long one at the end. Those of tests/actors come before all others: once a learner has joined a
    process group in a worker, an engine is no longer forked from it, but imports vLLM again."""
    gc.freeze()  # what was imported: DeepSpeed collects garbage often, a second each time
    gc.enable()
    slow = {item.path for item in items if item.get_closest_marker("system")}
    tests = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[bool, int, int]:
        late = item.path not in slow
        folder = next((n for n, name in enumerate(FIRST) if name in item.path.parts), len(FIRST))
        return late, folder, -tests[item.path] if late else 0

    items.sort(key=place)
