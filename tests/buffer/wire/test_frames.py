"""Frames of a message through real sockets of one process."""

import pytest
import zmq

from buffer.wire.frames import LARGE, has_message, receive_message, send_message


@pytest.fixture
def pair():
    """Two connected sockets; the first holds one message for a peer that does not take any."""
    with zmq.Context() as context:
        sender, receiver = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        sender.set(zmq.SNDHWM, 1)
        receiver.set(zmq.RCVHWM, 1)
        receiver.bind("inproc://frames")
        sender.connect("inproc://frames")
        yield sender, receiver
        sender.close(linger=0)
        receiver.close(linger=0)


def test_a_message_arrives_frame_by_frame_and_only_its_large_frames_are_not_copied(pair):
    sender, receiver = pair
    frames = [b"header", b"", b"x" * (LARGE - 1), memoryview(b"y" * LARGE)]
    assert not has_message(receiver)
    send_message(sender, frames)
    assert has_message(receiver)
    received = receive_message(receiver)
    assert [bytes(frame) for frame in received] == [bytes(frame) for frame in frames]
    assert [type(frame) for frame in received] == [bytes, bytes, bytes, memoryview]
    assert not has_message(receiver)


def test_a_message_that_cannot_be_sent_is_an_error_at_once(pair):
    sender, _ = pair
    with pytest.raises(zmq.Again):
        for _ in range(10):
            send_message(sender, [b"a", b"b"])


def test_a_message_that_has_not_arrived_is_an_error_at_once(pair):
    _, receiver = pair
    with pytest.raises(zmq.Again):
        receive_message(receiver)
