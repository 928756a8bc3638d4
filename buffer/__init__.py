"""The durable group buffer: store, service, client. See buffer.client.clients for a first look."""

from buffer.client.clients import AsyncBufferClient, BufferClient
from buffer.wire.messages import BufferStats, Draw, Lease, PutAck, Wait

__all__ = [
    "AsyncBufferClient",
    "BufferClient",
    "BufferStats",
    "Draw",
    "Lease",
    "PutAck",
    "Wait",
]
