"""The durable group buffer: store, service, client. buffer.client.clients has an example."""

from buffer.client.call_results import Draw
from buffer.client.clients import AsyncBufferClient, BufferClient
from buffer.wire.operations import BufferStats, Lease, PutAck, Wait

__all__ = ["AsyncBufferClient", "BufferClient", "BufferStats", "Draw", "Lease", "PutAck", "Wait"]
