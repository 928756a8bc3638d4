"""Sends notices to the user, for example of a full disk. A process writes a notice to its log, and
r3l-launch shows the notice."""

import sys
import time
from contextlib import suppress

NOTICE_LINE = "r3l-notice:"
LONGEST = 400  # characters
AGAIN_S = 60.0

_said: dict[str, float] = {}


def notice(text: str) -> None:
    """Shows one line to the user. Line breaks become spaces."""
    line = " ".join(text.split())
    if len(line) > LONGEST:
        line = f"{line[: LONGEST - 1]}…"
    with suppress(OSError):  # the log's disk may be full, which other processes report too
        print(f"{NOTICE_LINE} {line}", file=sys.stderr, flush=True)


def notice_again(kind: str, text: str) -> bool:
    """Shows a notice, but at most one of each `kind` in AGAIN_S seconds. Returns whether it was
    shown."""
    now = time.monotonic()
    if now - _said.get(kind, -AGAIN_S) < AGAIN_S:
        return False
    _said[kind] = now
    notice(text)
    return True
