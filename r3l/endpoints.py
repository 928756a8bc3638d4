"""Addresses at which clients find the services."""

from __future__ import annotations

import re

from r3l.errors import UserError

SOCKET_PATH_LIMIT = 107  # bytes; what the kernel takes
PORTS = range(1, 1 << 16)
_TCP = re.compile(r"tcp://(?:\[[0-9a-f:.]+\]|[a-z0-9](?:[\w.-]*[a-z0-9])?):(\d{1,5})", re.I | re.A)


def check_endpoint(endpoint: str, what: str) -> str:
    """`endpoint`, if it has the form of one; raises UserError, one line, otherwise.

    Who is `what` there is not asked: a service may be started after its clients.
    """
    path = endpoint.removeprefix("ipc://")
    if path != endpoint and 0 < len(path.encode()) <= SOCKET_PATH_LIMIT:
        return endpoint
    tcp = _TCP.fullmatch(endpoint)
    if tcp is None or int(tcp[1]) not in PORTS:
        raise UserError(
            f"{what} {endpoint!r:.200}: must look like tcp://HOST:PORT, the port from 1 to 65535, "
            f"or ipc://PATH, the path up to {SOCKET_PATH_LIMIT} bytes"
        )
    return endpoint
