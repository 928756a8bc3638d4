"""Every operation of the table is carried out by the service and offered by the clients."""

from collections import Counter
from inspect import signature

import pytest

from buffer import AsyncBufferClient, BufferClient
from buffer.client.calls import Calls
from buffer.server.handlers import READ_HANDLERS, WriteHandlers
from buffer.wire import messages
from buffer.wire.operations import OPERATIONS
from r3l.errors import RecordError
from r3l.records import GroupPlan, SlotResult, Task
from tests.buffer.fakes import calls, finished

CALLS = [
    calls.add_tasks([Task("t", "workshop", 0)]),
    calls.lease("a", 0, GroupPlan(1)),
    calls.put("g", "a", SlotResult(0, "skipped")),
    calls.put_partial("g", "a", SlotResult(0, "skipped")),
    calls.renew(["g"], "a"),
    calls.release(["g"], "a"),
    calls.draw(1, 0),
    calls.get_drawn(1, 0),
    calls.release_draws(),
    calls.commit(1, 1, 1, []),
    calls.discard(1, "nonfinite"),
    calls.insert(Task("t", "workshop", 0), [finished()], source="people"),
    calls.update_priorities({"g": 1.0}),
    calls.set_version(0),
    calls.query(),
    calls.ledger(1),
    calls.get(["g"]),
    calls.stats(),
]
RAW = ("put", "put_partial", "insert")


def test_every_operation_has_a_handler_of_its_thread_and_nothing_else_has_one(desk):
    writers = WriteHandlers(desk.store, Counter()).table
    by_thread = {"writer": set(writers)} | {t: set(table) for t, table in READ_HANDLERS.items()}
    for thread, handlers in by_thread.items():
        assert handlers == {name for name, row in OPERATIONS.items() if row.thread == thread}


def test_every_operation_has_a_client_method_that_builds_its_request():
    assert [call.operation for call in CALLS] == list(OPERATIONS)
    for call in CALLS:
        header, *rest = call.frames("r")
        request = messages.read_request(b"", messages.read_header([header]), rest)
        assert request.operation is OPERATIONS[call.operation]
        assert request.arguments == call.arguments or call.operation in RAW  # a Raw is its own


@pytest.mark.parametrize("client", [BufferClient, AsyncBufferClient])
def test_both_clients_have_every_operation_as_a_method_in_the_order_of_the_table(client):
    assert [name for name in vars(Calls) if name in OPERATIONS] == list(OPERATIONS)
    for name in OPERATIONS:
        assert getattr(client, name) is vars(Calls)[name]
    assert list(signature(client.release).parameters) == ["group_ids", "actor"]


def test_a_reply_must_be_of_a_kind_that_the_table_names_for_the_operation():
    frames = messages.reply_frames("r", calls.release_draws().arguments)
    for name, operation in OPERATIONS.items():
        expected = " or ".join(kind.__name__ for kind in operation.replies)
        with pytest.raises(RecordError, match=f"is a 'ReleaseDraws', not a {expected}$"):
            messages.read_reply(name, frames)
    with pytest.raises(RecordError, match="the reply has no record"):
        messages.read_reply("stats", frames[:1])
