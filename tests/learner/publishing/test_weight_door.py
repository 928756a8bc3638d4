"""The publisher's sockets."""

import pytest
import zmq

from learner.publishing.weight_door import WeightDoor
from r3l.errors import RecordError, UserError
from r3l.weights.keyed_sums import keyed_sum, new_key


def test_a_request_is_taken_only_with_its_keyed_checksum() -> None:
    key = new_key()
    door = WeightDoor("tcp://127.0.0.1:0", key=key)
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.setsockopt(zmq.LINGER, 0)
        asking.connect(door.endpoint)
        for frames in ([b"ask", keyed_sum(key, [b"ask"])], [b"ask", b"?"], [b"ask"]):
            asking.send_multipart(frames)
            while not door.socket.poll(20):
                door.access.update()  # lets the connection in
            received = door.receive()
            if len(frames[-1]) > 3:
                assert door.request(received) == b"ask"
                continue
            with pytest.raises(RecordError, match="keyed checksum"):
                door.request(received)
    door.access.close()
    door.close()


def test_a_port_in_use_is_refused_and_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buffer.wire.sockets.BIND_S", 0.0)
    door = WeightDoor("tcp://127.0.0.1:0")
    with pytest.raises(UserError, match="cannot listen"):
        WeightDoor(door.endpoint)
    door.access.close()
    door.close()
