"""Lease requests that wait for work, so that actors need not ask again and again.

    lease ─► no work ─► parked ─┬─ there may be work again: tried, the longest parked first
                                └─ its time is over: tried a last time, answered in any case

A few numbers show what work there is for leases (buffer.groups.leases.outlook). While they stay the
same, only a few requests a second are tried, because leases also expire with time.
"""

from collections import OrderedDict
from itertools import islice

from buffer.indexes.sorted_keys import SortedKeys
from buffer.wire.messages import ReceivedRequest

AT_ONCE = 32  # requests that are tried in one transaction
EVERY_S = 1.0  # between two tries without a reason
LONGEST_S = 30.0  # that a request is parked


class ParkedLeases:
    """The parked requests. Only the writer may use this object. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._line = OrderedDict[str, ReceivedRequest]()  # by id, the next one to try first
        self._until: dict[str, float] = {}  # includes those that are tried now
        self._by_end = SortedKeys[tuple[float, str]]()
        self._outlook: object = None  # when some of them were tried last
        self._try_at = 0.0

    def __len__(self) -> int:
        return len(self._line)

    def next_at(self, outlook: object) -> float:
        """Returns when a request is tried or answered next."""
        if not self._line:
            return float("inf")
        return 0.0 if outlook != self._outlook else min(self._try_at, self._by_end[0][0])

    def park(self, request: ReceivedRequest, now: float) -> bool:
        """Parks a refused request. Returns False if its time is already over."""
        wait_s = request.arguments.wait_s
        until = self._until.pop(request.rid, now + min(wait_s, LONGEST_S))
        if not now < until:
            return False
        self._line[request.rid] = request
        self._until[request.rid] = until
        self._by_end.add((until, request.rid))
        return True

    def answered(self, request: ReceivedRequest, *, granted: bool) -> None:
        """Forgets a request. After a grant, the other requests are tried again, since there may be
        more groups."""
        self._until.pop(request.rid, None)
        if granted:
            self._outlook = None

    def take(self, outlook: object, now: float) -> list[ReceivedRequest]:
        """Takes the requests to try now: all whose time is over, and some others if there may be
        work."""
        if not self._line:
            return []
        names = [rid for _, rid in self._by_end.below((now, ""))]
        if outlook != self._outlook or now >= self._try_at:
            self._outlook, self._try_at = outlook, now + EVERY_S
            names += [rid for rid in islice(self._line, AT_ONCE) if rid not in names]
        return [self._take(rid) for rid in names]

    def take_all(self) -> list[ReceivedRequest]:
        """Takes all requests, as if their time were over."""
        taken = [self._take(rid) for rid in list(self._line)]
        self._until = dict.fromkeys(self._until, 0.0)
        return taken

    def _take(self, rid: str) -> ReceivedRequest:
        self._by_end.discard((self._until[rid], rid))
        return self._line.pop(rid)
