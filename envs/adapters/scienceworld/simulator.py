"""Runs upstream's simulator on the JVM (envs.adapters.jvm), and caches its replies.

The simulator is deterministic, so the state of an attempt is its history: the task and the commands
so far. Replies already seen in this process come from memory. Java plays a history only if its last
reply is unknown. A return to an earlier step therefore costs almost nothing.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from envs.adapters import jvm
from r3l.errors import EnvironmentFailed

History = tuple[str, ...]
"""Task, variation and simplification, then the commands so far."""
START = 3
"""Length of a history without commands."""


class Turn(NamedTuple):
    """A reply from upstream. After a fatal action, `score` is negative and `done` is true."""

    text: str
    score: float
    done: bool


_known: dict[History, Turn] = {}
_gold: dict[History, tuple[str, ...]] = {}
MOST = 200_000
"""Number of turns at which `_known` is emptied, about 100 MB."""


class Simulator:
    """One simulator. All simulators of a process share one JVM, which starts on first use."""

    def __init__(self, jar: str, heap_mib: int, timeout_s: float) -> None:
        self.settings = ("scienceworld", [jar], heap_mib, timeout_s)
        self.jvm: jvm.Jvm | None = None
        self.server: Any = None
        self.live: History = ()

    def turn(self, history: History) -> Turn:
        """Returns the last reply in a history. Without commands, the reply is the task and the
        first room. Raises EnvironmentFailed if Java fails or a replay differs."""
        known = _known.get(history)
        return self._play(history) if known is None else known

    def turns(self, history: History) -> list[tuple[str, Turn]]:
        """Returns all commands of a history with their replies."""
        ends = range(START + 1, len(history) + 1)
        return [(history[end - 1], self.turn(history[:end])) for end in ends]

    def expect(self, history: History, turn: Turn) -> None:
        """Remembers a reply from another process. A later replay must give the same reply."""
        _known.setdefault(history, turn)

    def gold(self, start: History) -> tuple[str, ...]:
        """Returns upstream's gold path, at most 178 commands. Takes up to half a minute."""
        if start not in _gold:
            self.load(start, gold=True)
            path = self.call(lambda server: list(server.getGoldActionSequence()))
            ends = (n for n in range(len(path) + 1) if self.turn((*start, *path[:n])).done)
            _gold[start] = tuple(path[: next(ends, len(path))])
        return _gold[start]

    def call(self, call: Callable[[Any], Any]) -> Any:
        """Runs `call` with upstream's server object while no other call on the JVM is running."""
        assert self.jvm is not None, "nothing was loaded"
        return self.jvm.call(lambda: call(self.server))

    def close(self) -> None:
        """Releases the JVM. The JVM ends when no simulator of the process uses it."""
        self._free()
        if self.jvm is not None:
            machine, self.jvm = self.jvm, None
            jvm.release(machine)

    def _play(self, history: History) -> Turn:
        done = len(self.live)
        if not done or history[:done] != self.live or self._lost():
            self.load(history[:START])
            text = self.call(lambda s: f"{s.freeActionTaskDesc()}\n{s.freeActionLook()}")
            self._learn(history[:START], Turn(text, 0.0, False))
        while len(self.live) < len(history):
            command = history[len(self.live)]
            self._learn(history[: len(self.live) + 1], self._step(command))
        return _known[history]

    def _step(self, command: str) -> Turn:
        text, score, done = self.call(lambda s: (s.step(command), s.getScore(), s.getCompleted()))
        return Turn(str(text), float(score), bool(done) or score < 0)

    def _learn(self, history: History, turn: Turn) -> None:
        if len(_known) >= MOST:
            _known.clear()
        if _known.setdefault(history, turn) != turn:
            self.live = ()
            raise EnvironmentFailed(
                f"scienceworld: {' '.join(history[:START])}: a replay gave a different reply "
                f"to command {len(history) - START}",
                cause="replay_diverged",
            )
        self.live = history

    def load(self, start: History, *, gold: bool = False) -> None:
        """Loads a task from its beginning. Starts a new JVM if the last one was lost."""
        self._free()
        if self.jvm is None or self._lost():
            self.close()
            self.jvm = jvm.acquire(*self.settings)
        # a server that is loaded twice keeps the score of its last attempt until a step takes time
        python = self.jvm.gateway.jvm.scienceworld.runtime.pythonapi
        self.server = self.jvm.call(lambda: python.PythonInterface())
        task, variation, simplification = start
        self.call(lambda server: server.load(task, int(variation), simplification, gold))

    def _free(self) -> None:
        """Releases the loaded task in Java. Otherwise hundreds of tasks, 12 MiB each, would wait
        for Python's garbage collection."""
        machine, server = self.jvm, self.server
        self.server, self.live = None, ()
        if server is not None and machine is not None:
            with contextlib.suppress(EnvironmentFailed):  # a lost machine is replaced at the load
                machine.call(lambda: machine.gateway.detach(server))

    def _lost(self) -> bool:
        return self.jvm is None or bool(self.jvm.lost)
