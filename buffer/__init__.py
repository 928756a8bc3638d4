"""The durable group buffer: store, service, client. See buffer.client.clients for a first look."""

from buffer.client.calls import Draw
from buffer.client.clients import AsyncBufferClient, BufferClient
from buffer.wire.operations import BufferStats, Lease, PutAck, Wait

__all__ = [
    "AsyncBufferClient",
    "BufferClient",
    "BufferStats",
    "Draw",
    "Lease",
    "PutAck",
    "Wait",
]
