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


def test_a_batch_that_does_not_fit_in_memory_is_refused_with_the_sum(monkeypatch):
    monkeypatch.setattr(batch_memory, "free_memory", lambda: 15 * 10**9 - 1)
    names = tuple(f"g{number}" for number in range(4))
    row, now = replace(ROW, groups=names), (Status("drawn", "", {}),) * 4
    parse = calls.draw(4, 0).parse

    class Large(bytes):
        def __len__(self):
            return 10**9

    head = DrawHead(row, now, frames=(1,), left=3)
    with pytest.raises(LimitExceeded, match=r"draw 7: 4 groups have about 4 GB and take 4 times"):
        parse(head, [Large()])
    monkeypatch.setattr(batch_memory, "free_memory", lambda: 15 * 10**9)
    assert isinstance(parse(head, [Large()]), Rest)
