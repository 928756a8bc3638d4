"""Messages as frames: what a request or reply holds, and what is refused of it."""

import pytest

from buffer.wire import messages, operations
from r3l import codec
from r3l.errors import (
    LeaseLost,
    LimitExceeded,
    R3LError,
    RecordError,
    SchemaVersionError,
    UnknownOperation,
)
from r3l.records import TASK_LIMIT, GroupPlan, Task
from tests.buffer.fakes import calls, finished
from tests.r3l.files.made import flips


def read(frames):
    return messages.read_request(b"client", messages.read_header(frames), frames[1:])


def test_a_request_is_read_as_it_was_made():
    arguments = operations.AcquireLease("a", 3, GroupPlan(3), {"tokens": 1.5})
    frames = messages.request_frames("lease", "r1", arguments)
    request = read(frames)
    assert (request.client, request.rid) == (b"client", "r1")
    assert request.operation.name == "lease" and request.arguments == arguments
    assert request.nbytes == len(frames[1])


def test_a_reply_is_read_with_the_groups_behind_it():
    frames = messages.reply_frames("r1", operations.Amount(3), [b"one", b"two"])
    assert messages.address(frames) == ("r1", "")
    reply, groups = messages.read_reply("commit", frames)
    assert reply == operations.Amount(3) and list(groups) == [b"one", b"two"]


def test_an_error_is_raised_with_its_type_sentence_and_facts():
    frames = messages.error_frames("r1", LeaseLost("group g1 is held by b", group_id="g1"))
    with pytest.raises(LeaseLost, match="group g1 is held by b") as caught:
        messages.read_reply("put", frames)
    assert caught.value.facts == {"group_id": "g1"} and messages.address(frames) == ("r1", "")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"v": messages.PROTOCOL + 1}, SchemaVersionError),
        ({"v": float(messages.PROTOCOL)}, SchemaVersionError),
        ({"v": None}, SchemaVersionError),
        ({"rid": ""}, RecordError),
        ({"rid": "r" * 65}, RecordError),
        ({"rid": 5}, RecordError),
        ({"op": "lend"}, UnknownOperation),
        ({"op": ["stats"]}, UnknownOperation),
    ],
    ids=str,
)
def test_a_header_that_is_not_of_this_protocol_is_refused(changes, error):
    header = {"v": messages.PROTOCOL, "op": "stats", "rid": "r"} | changes
    with pytest.raises(R3LError) as caught:
        read([codec.pack(header), codec.encode(operations.GetStats())])
    assert type(caught.value) is error


def test_a_request_has_one_record_of_its_operation_and_nothing_else():
    header, record = messages.request_frames("stats", "r", operations.GetStats())
    for frames in ([], [header], [header, record, record], [header, b"junk"]):
        with pytest.raises(RecordError):
            read(frames)
    other = codec.encode(operations.SetVersion(1))
    with pytest.raises(RecordError, match="SetVersion"):
        read([header, other])


def test_a_request_that_would_be_refused_for_its_size_is_never_sent():
    text = {"text": "x" * (TASK_LIMIT - 99)}
    tasks = tuple(Task(f"t{n}", "workshop", 0, text) for n in range(17))
    with pytest.raises(LimitExceeded, match="add_tasks"):
        messages.request_frames("add_tasks", "r", operations.AddTasks(tasks, "train", "", 0))


def test_a_damaged_message_is_no_request_and_no_reply():
    tasks = operations.AddTasks((Task("t1", "workshop", 0),), "train", "", 0)
    request = messages.request_frames("add_tasks", "r", tasks)
    reply = messages.reply_frames("r", tasks, [b"a group"])
    unseen = 0
    for whole in (request, reply):
        for number, frame in enumerate(whole):
            for content in flips(frame, few=100):
                frames = [*whole[:number], content, *whole[number + 1 :]]
                unseen += messages.address(frames)[0] == "r" and not without_sum(frames[0])
                try:
                    header = messages.read_header(frames)
                    messages.check_sum(header, frames)
                    unseen += not without_sum(frames[0])
                except R3LError:
                    continue
    assert messages.address(reply)[0] == "r" and unseen == 0


def without_sum(header: bytes) -> bool:
    """Whether the flip was in the name of the checksum, so that all the rest is whole."""
    try:
        return "sum" not in codec.unpack(header)
    except R3LError:
        return False


def test_an_inquiry_names_a_request_and_a_sign_answers_it():
    frames = messages.inquiry_frames("put", "r1")
    header = messages.read_header(frames)
    assert messages.check_sum(header, frames) and messages.is_inquiry(header, frames)
    assert messages.operation_of(header).name == "put" and header["rid"] == "r1"
    assert not messages.is_inquiry(header, [*frames, b""])
    assert not messages.is_inquiry({"op": "put"}, frames), "a request without its record"
    for sign in (messages.BUSY, messages.WANTED):
        assert messages.address(messages.sign_frames("r1", sign)) == ("r1", sign)


def test_a_large_request_is_inquired_about_and_a_small_one_is_sent_again():
    small, large = calls.put("g", "a", finished()), calls.put("g", "a", finished(length=9000))
    assert small.frames("r", whole=False) == small.frames("r")
    assert large.frames("r", whole=False) == messages.inquiry_frames("put", "r")
    assert len(large.frames("r")) == 2
