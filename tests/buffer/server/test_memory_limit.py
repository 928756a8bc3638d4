"""When the service has too much memory."""

import pytest

from buffer.server import memory_limit
from buffer.server.memory_limit import MemoryLimit

GIB = 1 << 30


@pytest.fixture
def process(monkeypatch):
    """The memory of this process, as the limit sees it; `freed` when it is trimmed."""
    sizes = {"now": GIB, "freed": 0}

    def trim():
        sizes["now"] -= sizes["freed"]

    monkeypatch.setattr(memory_limit, "private_bytes", lambda: sizes["now"])
    monkeypatch.setattr(memory_limit, "return_freed_memory", trim)
    return sizes


def test_only_what_came_since_little_was_on_its_way_counts(process):
    limit = MemoryLimit(1.0)
    process["now"] = 3 * GIB
    assert not limit.exceeded(0)  # an index that grew
    process["now"] = 4 * GIB
    assert not limit.exceeded(2 << 20)
    process["now"] += 1
    assert limit.exceeded(2 << 20)


def test_freed_memory_is_given_back_before_somebody_is_blamed(process):
    limit = MemoryLimit(1.0)
    process["now"], process["freed"] = 3 * GIB, 2 * GIB
    assert not limit.exceeded(2 << 20)
