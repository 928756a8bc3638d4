"""Detects an unresponsive buffer or actor.

thread ── stats, every ASK_S ──► buffer ── reply: how long each actor was silent ──► report
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from buffer import BufferClient, BufferStats
from launch.backends.processes import Child
from r3l.errors import ClientClosed, R3LError
from r3l.run.settings.buffer import BufferConfig

ASK_S = 2.0
BUFFER_SILENT_S = 10.0  # until the user is warned
PAUSED_S = 5.0  # between two reports; after more, this process was stopped
ACTOR_SILENT_S = 6.0  # minimum: three heartbeats
STOPPED_S = 10.0  # maximum for a stopped actor
BEHIND_S = 60.0  # that an actor may stay too many versions behind


class Unresponsive:
    """Reports once when the buffer or an actor becomes unresponsive, and once when it recovers.

    `say` prints a line. `buffer_s`: seconds since the buffer's last reply. `actors_s`: seconds
    since each actor's last message to the buffer, keyed by process. Time in which this process
    itself was stopped (Ctrl-Z) does not count.
    """

    def __init__(self, config: BufferConfig, say: Callable[[str], None]) -> None:
        self.config, self.say = config, say
        self.buffer_s = 0.0
        self.actors_s: dict[str, float] = {}
        self._client: BufferClient | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._stats: BufferStats | None = None  # a reply that was not yet looked at
        self._reported = self._back = 0.0
        self._warned = False  # that the buffer is unresponsive
        self._known: dict[str, float] = {}  # since when an actor is known by this name
        self._silent: set[str] = set()
        self._behind: dict[str, float] = {}  # since when; inf once reported

    def watch(self, endpoint: str, keys: Path | None) -> None:
        """Starts to ask the buffer at `endpoint` for its stats. `keys`: the run's key folder."""
        self._client = BufferClient(
            endpoint, name="r3l-launch", timeout_s=60.0, keys=keys and keys / "client.json"
        )
        self._reported = self._back = time.monotonic()
        self._thread = threading.Thread(target=self._ask, name="unresponsive", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._client is not None and self._thread is not None:
            self._client.close()
            self._thread.join()

    def report(self, actors: Mapping[str, Child]) -> None:
        """Reports an unresponsive buffer or actor. `actors`: the ready actors, keyed by their name
        in the buffer."""
        if self._thread is None or not self._thread.is_alive():
            return
        now = time.monotonic()
        self.buffer_s += min(now - self._reported, 1.0)
        if now - self._reported > PAUSED_S:  # and perhaps the other processes too
            self._back = now
        self._reported = now
        stats, self._stats = self._stats, None
        if stats is not None:
            if self._warned:
                self.say(f"buffer replies again after {self.buffer_s:.0f} s")
                self._warned, self._back = False, now
            self.buffer_s = 0.0
            self._report_actors(actors, stats, now)
            self._report_behind(actors, stats, now)
        elif self.buffer_s > BUFFER_SILENT_S and not self._warned:
            self._warned = True
            self.say(
                f"buffer has not replied for {self.buffer_s:.0f} s; learner and actors wait; the "
                f"buffer is restarted after {self.config.reply_s:g} s (buffer.reply_s)"
            )

    def _report_actors(self, actors: Mapping[str, Child], stats: BufferStats, now: float) -> None:
        self._known = {name: self._known.get(name, now) for name in actors}
        self.actors_s = {}
        for name, child in actors.items():
            # An actor is not to blame for what a silent buffer did not receive.
            seen_s = stats.actors.get(name, {}).get("seen_s", math.inf)
            silent_s = min(seen_s, now - max(self._back, self._known[name]))
            self.actors_s[child.name] = silent_s
            limit_s = max(self.config.lease_s / 2, ACTOR_SILENT_S)
            if silent_s > STOPPED_S and child.stopped:  # others may be starting another engine
                limit_s = STOPPED_S
            if silent_s > limit_s and name not in self._silent:
                self._silent.add(name)
                self.say(
                    f"{child.name} has sent nothing for {silent_s:.0f} s; other actors continue "
                    f"its groups, at the latest after {self.config.lease_s:g} s (buffer.lease_s), "
                    f"and {child.name} is restarted if it is stopped or hung"
                )
            elif silent_s <= limit_s and name in self._silent:
                self._silent.discard(name)
                self.say(f"{child.name} sends again")

    def _report_behind(self, actors: Mapping[str, Child], stats: BufferStats, now: float) -> None:
        """Reports an actor whose weights stay too old while another actor keeps up."""
        by = {
            name: stats.learner_version - known.get("weight_version", 0.0)
            for name, known in stats.actors.items()
        }
        late = {n for n in actors if by.get(n, 0) > self.config.max_staleness + 1}
        if len(late) == len(actors):  # the learner is fast, or all are starting
            late = set()
        self._behind = {name: self._behind.get(name, now) for name in late}
        for name, since in self._behind.items():
            if now - since > BEHIND_S:
                self._behind[name] = math.inf
                self.say(f"{actors[name].name} is {by[name]:.0f} versions behind the learner while "
                         "others keep up; check its network link and its log")  # fmt: skip

    def _ask(self) -> None:
        assert self._client is not None
        while not self._ended.wait(ASK_S):
            try:
                self._stats = self._client.stats()
            except ClientClosed:
                return
            except R3LError:  # no reply within the client's timeout
                continue
