"""Where the gateway listens, and the address that agents are given."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from r3l.errors import UserError

ANY = ("", "0.0.0.0", "::")
"""Hosts that mean every address of this machine."""
TRIED_S = 5.0
"""Time limit for a connection to an address that agents are to be given, seconds."""
_FAR = (socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")
"""Addresses for documentation. A route to one shows this machine's own address; nothing is sent."""


def listen(host: str, port: int) -> socket.socket:
    """Listens at a host: a name, an address, or one of ANY; IPv6 with or without brackets. Port 0
    means any free port. Raises UserError."""
    bare = host.strip("[]")
    try:
        flags, kind = socket.AI_PASSIVE, socket.SOCK_STREAM
        found = socket.getaddrinfo(bare or None, port, type=kind, flags=flags)
        family, *_, place = min(found, key=lambda each: each[0] != socket.AF_INET)
        if family == socket.AF_INET:
            return socket.create_server(place)
        both = bare in ANY and socket.has_dualstack_ipv6()
        return socket.create_server((bare, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"actor.agent.port={port}: cannot listen on {host} ({error.strerror}); set 0 for "
            "any free port"
        ) from None


def reached_at(host: str, port: int) -> str:
    """Returns the host for the URLs that agents get. Tries to connect to it first. For a host of
    ANY, this is a name of this machine, or else an address. Raises UserError if no connection can
    be made."""
    bare, why = host.strip("[]"), ""
    for tried in _names() if bare in ANY else (bare,):
        try:
            socket.create_connection((tried, port), TRIED_S).close()
        except OSError as error:
            why = why or f"{tried}: {error.strerror or error}"
        else:
            return f"[{tried.replace('%', '%25')}]" if ":" in tried else tried
    raise UserError(
        f"actor.agent.host={host}: agents would not reach the actor there ({why}); set it to an "
        "address of this machine that they reach"
    )


def check_certificate(file: str) -> None:
    """Raises UserError unless a PEM file holds a certificate and its key, without a password."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Path(file).expanduser(), password=lambda: "")
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise UserError(
            f"actor.agent.certificate={file}: cannot be used ({why}); name a PEM file with the "
            "certificate, the certificates that signed it, and its key without a password"
        ) from None


def _names() -> Iterator[str]:
    """Yields the names and addresses under which other machines may know this one."""
    yield socket.gethostname()
    yield socket.getfqdn()
    for family, far in _FAR:
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as route:
            route.connect((far, 9))
            yield route.getsockname()[0]
