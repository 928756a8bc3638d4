"""Checks the addresses of a run's two services, and their keys."""

import re
import socket
from collections.abc import Sequence
from dataclasses import replace

from buffer.wire.curve_keys import ClientKeys, ServiceKeys, load
from launch.checks.plan_options import LOOPBACK, PlanOptions
from r3l.errors import UserError
from r3l.run.process.endpoints import check_bind, is_local

EVERYWHERE = "tcp://0.0.0.0:*"
KEYS = "keys"  # in a run's folder, made if keys are needed but not given


def with_reachable_services(options: PlanOptions, elsewhere: Sequence[str]) -> PlanOptions:
    """Changes the options so that actors on other machines (`elsewhere`) can reach the services.

    Replaces only default addresses. If other machines can reach an address, also sets the folder of
    keys. The default folder is in the run's folder and may not exist yet. Raises UserError if a key
    is missing or an address is unreachable.
    """
    if elsewhere:
        buffer, weights = (
            bind.replace(LOOPBACK, EVERYWHERE) for bind in options.addresses.values()
        )
        options = replace(options, buffer_bind=buffer, weights_bind=weights)
        for option, bind in options.addresses.items():
            if is_local(bind):
                raise UserError(
                    f"{option} {bind}: actors on {elsewhere[0]} cannot reach it; give {EVERYWHERE}"
                )
    if options.keys is None and all(map(is_local, options.addresses.values())):
        return options
    keys = options.keys or options.run / KEYS
    if options.keys is not None or keys.exists():
        load(ServiceKeys, keys / "service.json")
        load(ClientKeys, keys / "client.json")
        load(ClientKeys, keys / "learner.json")
    return replace(options, keys=keys.resolve())


def check_addresses(options: PlanOptions) -> None:
    """Refuses an address that a service cannot use, and two addresses with the same port.

    Port 0 or * stands for any free port.
    """
    ports: dict[int, str] = {}
    for option, bind in options.addresses.items():
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
