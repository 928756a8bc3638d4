"""Checks the addresses of a run's two services, and their keys."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from buffer.wire.curve_keys import ClientKeys, ServiceKeys, load
from r3l.errors import UserError
from r3l.process.endpoints import check_bind, is_local

LOOPBACK = "tcp://127.0.0.1:*"
EVERYWHERE = "tcp://0.0.0.0:*"
KEYS = "keys"  # in a run's folder, if some are needed and none given


@dataclass(frozen=True)
class Services:
    """The addresses of the buffer service and the weight publisher. `keys`: the key folder."""

    buffer: str
    weights: str
    keys: Path | None = None

    @property
    def by_option(self) -> dict[str, str]:
        """The addresses, keyed by the option that sets each."""
        return {"--buffer": self.buffer, "--weights": self.weights}

    def reached_from(self, elsewhere: Sequence[str], run: Path) -> Services:
        """Returns the services of a run that also has actors on the machines `elsewhere`.

        Replaces default addresses by ones that these machines can reach. Services at an address
        that other machines can reach need keys: the given ones, or those in the run's folder.
        Raises UserError if keys are missing or actors cannot reach an address.
        """
        services = self
        if elsewhere:
            buffer, weights = (
                bind.replace(LOOPBACK, EVERYWHERE) for bind in (self.buffer, self.weights)
            )
            services = replace(self, buffer=buffer, weights=weights)
            for option, bind in services.by_option.items():
                if is_local(bind):
                    raise UserError(
                        f"{option} {bind}: actors on {elsewhere[0]} cannot reach it; "
                        f"give {EVERYWHERE}"
                    )
        keys = services.keys
        if keys is None and all(map(is_local, services.by_option.values())):
            return services
        if keys is not None or (run / KEYS).exists():
            check_keys(keys or run / KEYS)
        return replace(services, keys=(keys or run / KEYS).resolve())


def check_keys(folder: Path) -> None:
    """Refuses a folder that lacks any role's keys."""
    load(ServiceKeys, folder / "service.json")
    load(ClientKeys, folder / "client.json")
    load(ClientKeys, folder / "learner.json")


def check_addresses(services: Services) -> None:
    """Refuses an address that a service cannot use, and two addresses with the same port.

    Port 0 or * stands for any free port.
    """
    ports: dict[int, str] = {}
    for option, bind in services.by_option.items():
        check_bind(bind, option, encrypted=True)
        match = re.fullmatch(r"tcp://([\w.\-]+):(\d+|\*)", bind)
        if match is None:
            raise UserError(f"{option} {bind!r}: must look like tcp://127.0.0.1:5555")
        host, port = match[1], int(match[2].replace("*", "0"))
        if port in ports:
            raise UserError(
                f"{option} {bind}: has the same port as {ports[port]}; choose another port"
            )
        if port:
            ports[port] = option
        _check_free(option, bind, host, port)


def _check_free(option: str, bind: str, host: str, port: int) -> None:
    with socket.socket() as probe:
        # As ZeroMQ does: connections of a run that has just ended do not block its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"{option} {bind}: cannot be used ({error}); choose a free port"
            ) from None
