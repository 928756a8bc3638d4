"""Checks addresses: a service listens at `bind`, and its clients connect to `endpoint`."""

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from r3l.errors import UserError

PORTS = range(1, 1 << 16)
_BIND = re.compile(r"tcp://(?:\[[0-9a-f:.]+\]|[\w.-]+|\*):(\d{1,5}|\*)", re.I | re.A)
_TCP = re.compile(r"tcp://(?:\[[0-9a-f:.]+\]|[a-z0-9](?:[\w.-]*[a-z0-9])?):(\d{1,5})", re.I | re.A)


def check_endpoint(endpoint: str, what: str) -> str:
    """Returns `endpoint`. Raises UserError if it is malformed. Does not connect, since a service
    may start after its clients."""
    tcp = _TCP.fullmatch(endpoint)
    if tcp is None or int(tcp[1]) not in PORTS:
        raise UserError(
            f"{what} {endpoint!r:.200}: must look like tcp://HOST:PORT, the port from 1 to 65535"
        )
    return endpoint


def check_bind(bind: str, what: str, *, encrypted: bool) -> str:
    """Returns `bind`. Raises UserError if `bind` is malformed. Without encryption, also raises
    UserError if other machines could connect."""
    tcp = _BIND.fullmatch(bind)
    port = tcp[1].replace("*", "0") if tcp else "65536"
    if not int(port) < 1 << 16:  # ZeroMQ takes 65536 for 0
        raise UserError(
            f"{what} {bind!r:.200}: must look like tcp://127.0.0.1:PORT, the port from 1 to 65535, "
            "or 0 for any free port"
        )
    if not encrypted and not is_local(bind):
        raise UserError(
            f"{what} {bind}: only loopback addresses (127.0.0.1) are served without --keys; "
            "r3l-buffer keygen makes keys"
        )
    return bind


def is_local(bind: str) -> bool:
    """Whether only this machine can connect to `bind`."""
    return bind.startswith(("tcp://127.", "tcp://localhost:", "tcp://[::1]:"))


def is_near(url: str) -> bool:
    """Whether a URL names this machine. Calls to it go to no proxy."""
    host = (urlsplit(url).hostname or "").lower()
    if host in ("localhost", socket.gethostname().lower()) or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        address = ip_address(host)
        return address.is_loopback or address.is_unspecified
    return False


def reached(bind: str, machine: str = "127.0.0.1") -> str:
    """Returns the address at which clients reach a service that listens at `bind` on `machine`."""
    return bind.replace("//0.0.0.0:", f"//{machine}:")


@contextmanager
def with_port(bind: str) -> Iterator[str]:
    """Yields `bind`, with a free port instead of 0 or *. Inside the context, the port is reserved
    for a ZeroMQ service. Raises UserError if no port can be reserved."""
    host, _, port = bind.removeprefix("tcp://").rpartition(":")
    if port not in ("0", "*"):
        yield bind
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ does
        try:
            held.bind((host.strip("[]"), 0))
        except OSError as error:
            raise UserError(
                f"{bind}: cannot listen ({error.strerror}); choose an address of this machine"
            ) from None
        yield f"tcp://{host}:{held.getsockname()[1]}"
