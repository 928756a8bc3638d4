"""The socket at which the weight publisher receives requests, and the limits for their senders."""

from pathlib import Path
from typing import Any

import zmq

from buffer.wire.access import Access, allow_files
from buffer.wire.curve_keys import ServiceKeys, load
from buffer.wire.sockets import Frame, Received, bind, new_socket, receive_from_peer
from buffer.wire.traffic import Limits
from r3l.errors import RecordError, UserError
from r3l.weights.keyed_sums import is_genuine, keyed_sum

CONNECTIONS = 4096  # subscribers; at most half the limit of open files
REQUEST_BYTES = 4096  # above the size of any request
CONNECTION_BYTES = 64 << 10  # unread, of one subscriber
TOTAL_BYTES = 4 << 20  # unread, of all subscribers
HIGH_WATER = 16  # replies queued for one subscriber; a well-behaved one requests fewer


class WeightDoor:
    """Listens at `address`; `endpoint`: with the chosen port. `keys`: the key file of the service,
    for encryption. `key`: the key of keyed checksums; requests without them are refused. Raises
    UserError if it cannot listen."""

    def __init__(self, address: str, *, keys: Path | None = None, key: bytes | None = None) -> None:
        self.key = key
        secrets = load(ServiceKeys, keys) if keys else None
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = new_socket(
            self._context,
            zmq.ROUTER,
            ROUTER_MANDATORY=1,
            SNDHWM=HIGH_WATER,
            SNDTIMEO=0,  # a subscriber that does not read loses replies
            MAXMSGSIZE=REQUEST_BYTES,
            HEARTBEAT_IVL=5000,
            HEARTBEAT_TIMEOUT=30000,
        )
        files = allow_files(2 * CONNECTIONS)
        limits = Limits(CONNECTION_BYTES, TOTAL_BYTES, silent=min(512, files // 4))
        connections = min(CONNECTIONS, files // 2)
        self.access = Access(self._context, self.socket, secrets, connections, limits)
        try:
            self.endpoint = bind(self.socket, address, "weights")
        except UserError:
            self._context.destroy(linger=0)
            raise

    @property
    def sockets(self) -> tuple[Any, ...]:
        """What to poll."""
        return (self.socket, *self.access.sockets)

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    def receive(self) -> Received:
        """Receives a request that has already arrived."""
        received = receive_from_peer(self.socket)
        self.access.traffic.mark_read(received)
        return received

    def request(self, received: Received) -> Frame:
        """Returns the packed request. Raises RecordError if its keyed checksum is wrong."""
        if self.key is None:
            return received.frames[-1]
        match received.frames:
            case [request, claimed] if is_genuine(self.key, [request], bytes(claimed)):
                return request
        raise RecordError("weights: a request has no keyed checksum, or a wrong one")

    def send(self, client: bytes, frames: list[Any]) -> None:
        """Sends a reply, without waiting. Raises zmq.ZMQError if the client left."""
        if self.key is not None:
            frames = [*frames, keyed_sum(self.key, frames)]
        self.socket.send_multipart([client, *frames], copy=False)

    def close(self) -> None:
        """Closes the socket. Call `access.close` in the serving thread first."""
        self._context.destroy(linger=0)
