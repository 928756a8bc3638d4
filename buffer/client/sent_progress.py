"""Tracks what the service has of an attempt's progress, so that only the new turns are sent.

first save    whole                                   ─► acknowledged
later ones    what is new since the acknowledged one  ─► acknowledged
                                                      └► ProgressGap: whole, once
"""

from collections import Counter
from typing import Protocol

from r3l import codec
from r3l.errors import ProgressGap
from r3l.records import SlotResult


class Client(Protocol):
    """The parts of a client that are needed here (buffer.client.clients.AsyncBufferClient)."""

    async def put_partial(
        self,
        group_id: str,
        actor: str,
        result: SlotResult,
        *,
        since: bytes | None = None,
        serial: int = 0,
    ) -> int: ...


class SentProgress:
    """The progress of one lease that the service has acknowledged, by slot. `counts`: counts as
    `resent` how often the service lacked it."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._serial = 0
        self._known: dict[int, bytes] = {}

    async def put(self, client: Client, group_id: str, actor: str, result: SlotResult) -> int:
        """Puts a slot's progress. Returns 0 if the slot is resolved. Raises the errors of
        `put_partial`."""
        known = self._known.get(result.slot)
        try:
            stored = await self._send(client, group_id, actor, result, known)
        except ProgressGap:
            self._counts["resent"] += 1
            self._known.pop(result.slot, None)
            stored = await self._send(client, group_id, actor, result, None)
        if stored:
            self._known[result.slot] = codec.encode(result)
        else:
            self.forget(result.slot)
        return stored

    def forget(self, slot: int) -> None:
        """Forgets a slot that needs no more progress."""
        self._known.pop(slot, None)

    async def _send(
        self, client: Client, group_id: str, actor: str, result: SlotResult, since: bytes | None
    ) -> int:
        self._serial += 1
        return await client.put_partial(group_id, actor, result, since=since, serial=self._serial)
