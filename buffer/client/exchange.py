"""Decides what a client does to get one reply: when it sends, waits, sends again and gives up.

An Exchange does no input or output and reads no clock. A client asks it what to do `next`, does
that, and tells it what happened:

    exchange = Exchange(peer, "stats", rid, patience, now)
    while True:
        match exchange.next(now):
            case Send(whole):         # the request, or if it is large and not `whole`, an inquiry
            case Wait(until):         # for messages; of each: exchange.received(rid, sign, frames)
            case Report(line, warn):  # tell the caller that the reply is overdue
            case Ask():               # send it again on the same socket, if it is large an inquiry
            case Replace():           # the socket: it may be dead
            case Done(frames, again): # the reply
            case GiveUp(error):       # raise the error

If the socket neither sends nor receives, the client says so with `exchange.stuck(now)`. If bytes of
a large message move, it says so with `exchange.alive(now)`, and its wait starts again. If the
service says that it is at work, the client keeps the socket, but the deadline stays the same.

The request keeps its id when it is sent again, so the service carries it out once. Only the first
reply with this id counts. An inquiry has only the id: the service answers with the reply, or says
that it is at work, or that it does not know the request and wants the whole request. So a large
request is never sent while an earlier copy is on its way. All times are seconds of one monotonic
clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from buffer.wire.messages import BUSY, WANTED
from buffer.wire.sockets import NO_PLACE, UNKNOWN_KEY, Frame
from r3l.errors import BufferUnavailable, ClientClosed, R3LError


@dataclass(frozen=True)
class Patience:
    """How long a client waits for a reply, in seconds. `timeout_s`: until it gives up.
    `first_try_s`: until it asks again; after the same time once more, it replaces the socket. The
    wait before asking doubles with each try, up to `longest_try_s`. `held_s`: how long the service
    may keep the request; the other times begin after that."""

    timeout_s: float
    first_try_s: float
    longest_try_s: float
    held_s: float = 0.0


@dataclass(frozen=True)
class Send:
    """Send the request. `whole`: send it even if it is large; otherwise, inquire about a large
    request."""

    whole: bool = True


@dataclass(frozen=True)
class Ask:
    """Send the request again on its socket; if it is large, inquire about it."""


@dataclass(frozen=True)
class Wait:
    """Wait for messages, at most to the time `until`."""

    until: float


@dataclass(frozen=True)
class Report:
    """Tell the caller that the reply is overdue. `warn`: log it as a warning too."""

    line: str
    warn: bool


@dataclass(frozen=True)
class Replace:
    """Close the socket on which the request was sent. The next Send needs another one."""


@dataclass(frozen=True)
class Done:
    """The reply. `again`: a line for the log if the buffer was silent for long, else ""."""

    frames: Sequence[Frame]
    again: str


@dataclass(frozen=True)
class GiveUp:
    """Raise the error."""

    error: R3LError


REFUSALS = {
    UNKNOWN_KEY: "it refuses this client's key",
    NO_PLACE: "it has no place for another client; end one that is not needed",
}

Action = Send | Ask | Wait | Report | Replace | Done | GiveUp


@dataclass
class Peer:
    """What all exchanges of one client share. `name`: the client's. `keys`: whether the client has
    a key. `report_s`: seconds between two reports of an overdue reply. `warn_after_s`: seconds of
    silence after which a report is a warning; doubles after each. `closed`: set when the client is
    closed, which ends its exchanges. `refused`: the status with which the service refuses the
    connection, 0 if it does not."""

    name: str
    endpoint: str
    keys: bool
    report_s: float
    warn_after_s: float
    closed: bool = False
    refused: int = 0
    _silent_since: float | None = None
    """When the first request of the present silence was sent."""
    _reported_at: float = float("-inf")
    _warn_s: float = field(init=False)
    """How long the silence must be for the next warning."""

    def __post_init__(self) -> None:
        self._warn_s = self.warn_after_s

    def __str__(self) -> str:
        return f"{self.name} of the buffer at {self.endpoint}"

    def report_at(self, start: float) -> float:
        """Returns when a request sent at `start` is overdue enough for the next report."""
        return max(start, self._reported_at) + self.report_s

    def report(self, operation: str, start: float, now: float) -> Report:
        """Makes a report about a request sent at `start`."""
        self._reported_at = now
        if self._silent_since is None:
            self._silent_since = start
        silent_s = now - self._silent_since
        if warn := silent_s > self._warn_s:
            self._warn_s = 2 * silent_s
        return Report(
            f"{self.name} waits for the buffer at {self.endpoint}: no reply to {operation} "
            f"for {silent_s:.0f} s{self._refusal()}",
            warn,
        )

    def replied(self, now: float) -> str:
        """Ends the silence. If a warning reported the silence, returns a line that says so, else
        ""."""
        self.refused = 0
        since, warned = self._silent_since, self._warn_s > self.warn_after_s
        self._silent_since, self._warn_s = None, self.warn_after_s
        if since is None or not warned:
            return ""
        return f"the buffer at {self.endpoint} replies again, after {now - since:.0f} s"

    def refusal(self, operation: str) -> ClientClosed:
        """Returns the error for a request to a closed client."""
        return ClientClosed(f"{self} was closed and cannot send {operation}")

    def _refusal(self) -> str:
        return f"; {REFUSALS[self.refused]}" if self.refused in REFUSALS else ""

    def unavailable(self, operation: str, waited_s: float) -> BufferUnavailable:
        """Returns the error of a request without a reply."""
        hint = "" if self.keys else "; check that the buffer runs and needs no keys"
        hint, refused = self._refusal() or hint, REFUSALS.get(self.refused)
        return BufferUnavailable(
            f"buffer at {self.endpoint}: {self.name} got no reply to {operation} in "
            f"{waited_s:.1f} s{hint}",
            endpoint=self.endpoint,
            waited_s=waited_s,
            **({"refused": refused} if refused else {}),
        )


class Exchange:
    """One request of a client and its reply. `rid`: the request's id. `now`: when it begins."""

    def __init__(
        self, peer: Peer, operation: str, rid: str, patience: Patience, now: float
    ) -> None:
        self.peer, self.operation, self.rid = peer, operation, rid
        self.start = now + patience.held_s  # when the reply is due
        self._patience = patience
        self._deadline = self.start + patience.timeout_s
        self._try_s = patience.first_try_s
        self._try_ends: float | None = None  # None: to be sent
        self._whole, self._sent = True, False  # of the next Send; whether it was sent on its socket
        self._asked = False  # in this try
        self._reply: Sequence[Frame] | None = None

    @property
    def replied(self) -> bool:
        """Whether the reply has arrived."""
        return self._reply is not None

    def received(self, rid: str, sign: str, frames: Sequence[Frame], now: float) -> None:
        """Takes a message about the request `rid`. `sign`: see buffer.wire.messages; "" for a
        reply. Ignores messages about other requests, and everything after the first reply."""
        if rid != self.rid or self._reply is not None:
            return
        if sign == BUSY:
            self._wait_on(now)
        elif sign != WANTED:
            self._reply = frames
        elif not self._sent:
            self._whole, self._try_ends = True, None

    def inquired(self) -> None:
        """Notes that the client has inquired about the request on a new socket."""
        self._sent = False

    def alive(self, now: float) -> None:
        """Restarts the wait for the reply, because the request or the reply is on its way."""
        self._deadline = max(self._deadline, now + self._patience.timeout_s)
        self._wait_on(now)

    def _wait_on(self, now: float) -> None:
        """Keeps the socket for another try."""
        self._asked, self._try_ends = False, min(self._deadline, now + self._next_try())

    def stuck(self, now: float) -> None:
        """Ends this try, because the socket neither sends nor receives."""
        self._try_ends, self._asked = now, True

    def next(self, now: float) -> Action:
        """Returns what the client should do now."""
        if self._reply is not None:
            return Done(self._reply, self.peer.replied(now))
        if self.peer.closed:
            return GiveUp(self.peer.refusal(self.operation))
        if self._try_ends is None:
            return self._send_or_give_up(now)
        if now >= (report_at := self.peer.report_at(self.start)):
            return self.peer.report(self.operation, self.start, now)
        if now < self._try_ends:
            return Wait(min(self._try_ends, report_at))
        if not self._asked and now < self._deadline:
            self._asked, self._sent = True, False
            self._try_ends = min(self._deadline, now + self._patience.first_try_s)
            return Ask()
        self._try_ends, self._whole = None, False
        return Replace()

    def _send_or_give_up(self, now: float) -> Action:
        if now >= self._deadline:
            return GiveUp(self.peer.unavailable(self.operation, now - self.start))
        self._try_ends = min(self._deadline, max(now, self.start) + self._next_try())
        self._asked, self._sent = False, self._whole
        return Send(self._whole)

    def _next_try(self) -> float:
        """Returns how long the next try takes, in seconds."""
        now = self._try_s
        self._try_s = min(2 * now, self._patience.longest_try_s)
        return now
