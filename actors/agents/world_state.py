"""Keeps the state of an agent's world before each call, and puts it back at a retry's pivot.

base attempt   call k ─► save k while the reply is sampled ─► kept in the actor's folder for a retry
retry          pivot ─► restore k; restore_failed if this fails, is late or yields wrong files
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from actors.agents.next_process import RestoreFailed
from envs.agents.agent_runner import Operation, ProcessState
from r3l.errors import EnvironmentFailed
from r3l.files.temporary_folder import held_folder, remove_left, remove_tree
from r3l.notices import notice
from r3l.records import Trajectory

MOST_ATTEMPTS = 256
MOST_BYTES = 8 << 30
PREFIX = "r3l-snapshots-"

Run = Callable[[Operation, str, int], Awaitable[tuple[ProcessState, bool]]]
"""Runs (operation, folder, call). Returns the ended process's state, and whether it was in time."""


class Snapshots:
    """Keeps the saved worlds of base attempts for retries. After `limit` failures in a row, no
    world is saved or restored."""

    def __init__(self, limit: int, counts: Counter[str]) -> None:
        self.limit, self.counts, self.in_a_row = max(limit, 1), counts, Counter[str]()
        self.root, self.lock = held_folder(PREFIX)
        remove_left(PREFIX, suffix="")
        self.worlds: dict[str, World] = {}
        self.bytes = 0  # of all worlds, including those of running attempts

    @property
    def usable(self) -> bool:
        return max(self.in_a_row.values(), default=0) < self.limit

    def new(self, run: Run) -> World | None:
        """Returns an empty world for a base attempt, or None after too many failures."""
        folder = tempfile.mkdtemp(dir=self.root) if self.usable else ""
        return World(self, Path(folder), run) if folder else None

    async def keep(self, world: World, attempt: Trajectory) -> None:
        """Keeps the world of an ended attempt for its retry."""
        await world.end()
        self.worlds[_name(attempt)] = world
        await self.make_room()

    async def make_room(self) -> None:
        """If there are too many worlds or bytes, removes the oldest worlds of ended attempts."""
        while self.worlds and (len(self.worlds) > MOST_ATTEMPTS or self.bytes > MOST_BYTES):
            await self.worlds.pop(next(iter(self.worlds))).remove()

    def take(self, base: Trajectory) -> World | None:
        """Returns the saved world of a base attempt, if any. The caller must remove the world."""
        return self.worlds.pop(_name(base), None) if self.usable else None

    def close(self) -> None:
        remove_tree(self.root)
        os.close(self.lock)

    def failed(self, count: str, why: str) -> None:
        self.counts[count] += 1
        self.in_a_row[count] += 1
        if not self.usable:
            notice(
                f"agents' worlds are neither saved nor put back from now on: {self.limit} failures "
                f"in a row, the last because {why}"
            )


class World:
    """Saves a base attempt's world before each call. Restores the world in a retry. `saved`:
    indices of the calls with a saved state."""

    def __init__(self, snapshots: Snapshots, folder: Path, run: Run) -> None:
        self.snapshots, self.folder, self.run = snapshots, folder, run  # the current attempt's run
        self.saved: set[int] = set()
        self.saving, self.bytes = True, 0
        self._one = asyncio.Lock()

    async def save(self, call: int) -> None:
        """Saves the state before a call. A failed save removes all saved states of the attempt."""
        async with self._one:
            if not self.saving:
                return
            try:
                self._takes((await self._done("save", call))["bytes"])
                await self.snapshots.make_room()
                if self.snapshots.bytes > MOST_BYTES:
                    raise EnvironmentFailed(f"all snapshots together exceed {MOST_BYTES} bytes")
            except EnvironmentFailed as error:
                if self.saving:  # else the attempt has ended, which may have ended the save
                    self.snapshots.failed("snapshot_failed", str(error))
                self.saving = False
                self.saved.clear()
                await self._clear()
                return
            self.snapshots.in_a_row["snapshot_failed"] = 0
            self.saved.add(call)

    async def restore(self, call: int, run: Run) -> None:
        """In a retry, puts back the state that was saved before a call. Raises RestoreFailed."""
        self.run = run
        try:
            await self._done("restore", call)
        except EnvironmentFailed as error:
            self.snapshots.failed("restore_failed", str(error))
            raise RestoreFailed(str(error), cause="restore_failed") from error
        self.snapshots.counts["restored"] += 1

    async def end(self) -> None:
        """Prevents further saves, and waits for the save in progress."""
        self.saving = False
        async with self._one:
            pass

    async def remove(self) -> None:
        await self.end()
        await self._clear()

    async def _clear(self) -> None:
        await asyncio.to_thread(remove_tree, self.folder)
        self._takes(0)

    def _takes(self, size: int) -> None:
        self.snapshots.bytes += size - self.bytes
        self.bytes = size

    async def _done(self, operation: Operation, call: int) -> dict[str, int]:
        state, in_time = await self.run(operation, str(self.folder), call)
        if not in_time or state.exit != 0:
            why = state.stderr if in_time else "it took too long (actor.agent.state_s)"
            raise EnvironmentFailed(f"agent: {operation} failed before call {call}: {why}")
        return dict(json.loads(state.stdout))


def _name(attempt: Trajectory) -> str:
    return hashlib.blake2b(attempt.extra.tape, digest_size=16).hexdigest()
