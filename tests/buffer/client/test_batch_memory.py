"""A batch that does not fit in memory is refused while it comes."""

import pytest
from msgspec.structs import replace

from buffer.client import batch_memory
from buffer.client.call_results import Rest
from buffer.storage.stored_rows import DrawRow, Status
from buffer.wire.operations import DrawHead
from r3l.errors import LimitExceeded
from tests.buffer.fakes import calls

ROW = DrawRow(7, "r", "learner", 5, ("g1",), "fifo", 1.5)


HEAD = DrawHead(
    replace(ROW, groups=tuple(f"g{number}" for number in range(4))),
    (Status("drawn", "", {}),) * 4,
    frames=(1,),
    left=3,
)


class Large(bytes):
    """A record of 1 GB."""

    def __len__(self):
        return 10**9


@pytest.fixture
def machine(monkeypatch):
    """Sets how many GB a machine has, and how many are free."""

    def made(total, free):
        monkeypatch.setattr(batch_memory, "all_memory", lambda: total * 10**9)
        monkeypatch.setattr(batch_memory, "free_memory", lambda: int(free * 10**9))

    return made


def refusal():
    with pytest.raises(LimitExceeded) as caught:
        calls.draw(4, 0).parse(HEAD, [Large()])
    assert caught.value.cause == batch_memory.TOO_LARGE
    return str(caught.value)


def test_a_batch_that_does_not_fit_in_memory_is_refused_with_the_sum(machine):
    machine(64, 15 - 1e-9)
    assert refusal().startswith(
        "draw 7: 4 groups have about 4 GB and take 4 times as much memory; 15 GB are free after 1 "
        "GB came; "
    )
    machine(64, 15)
    assert isinstance(calls.draw(4, 0).parse(HEAD, [Large()]), Rest)


@pytest.mark.parametrize(
    ("total", "free", "helps"),
    [
        (15.9, 12, "lower learner.groups_per_step to 3, or add memory"),
        (64, 8, "lower learner.groups_per_step to 2, or free some of the 55 GB that are in use"),
        (64, 2, "not even one group fits: free some of the 61 GB that are in use, or make groups"),
        (3.5, 2, "not even one group fits: add memory, or make groups smaller (algorithm.group_"),
    ],
)
def test_what_helps_is_named_fewer_groups_smaller_ones_or_memory(machine, total, free, helps):
    machine(total, free)
    assert f" GB came; {helps}" in refusal()
