"""The command `r3l-buffer`."""

from __future__ import annotations

import ctypes
import logging
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import lmdb

from buffer.groups import samplers
from buffer.groups.unit_of_work import Settings
from buffer.server.service import Service
from buffer.storage import folder_lock
from buffer.storage.store import Store
from buffer.tools import commands as tools
from buffer.tools import evict
from buffer.wire import messages
from buffer.wire.curve_keys import ServiceKeys, generate, load
from r3l.endpoints import check_bind
from r3l.errors import NotFound, R3LError, SchemaVersionError, UserError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT_BYTES = 32 << 20
LONGEST_S = 1e9  # of any time that can be set; far longer than a store lives
SPARE_FILES = 1000  # open files beside connections, and room for those being turned away
SILENT_FILES = 20_000  # for connections that have yet to say who they are, where the system allows


@click.group()
def commands() -> None:
    """The durable group buffer of r3l."""


@commands.command()
@click.option("--store", "folder", type=click.Path(path_type=Path), required=True, help="Folder.")
@click.option("--bind", required=True, help="tcp://127.0.0.1:PORT; port 0 takes any free one.")
@click.option("--map-gib", default=64.0, show_default=True, help="Address space, GiB.")
@click.option("--lease-s", default=120.0, show_default=True, help="Lease length, seconds.")
@click.option("--max-staleness", default=4, show_default=True, help="η, optimizer steps.")
@click.option("--groups-per-step", default=16, show_default=True, help="B, groups per step.")
@click.option("--min-base", default=1, show_default=True, help="Base slots that make a quorum.")
@click.option("--straggler-s", default=0.0, help="Seconds until a quorum is enough; 0: never.")
@click.option(
    "--draw-s",
    default=3600.0,
    show_default=True,
    help="Seconds of silence after which a consumer's draws are given back; 0: never.",
)
@click.option(
    "--sampler", default="fifo", show_default=True, help=f"One of {', '.join(samplers.SAMPLERS)}."
)
@click.option("--reuse", default=1, show_default=True, help="Steps a group may be trained in.")
@click.option("--cooldown", default=0, show_default=True, help="Draws between two of a group.")
@click.option("--alpha", default=1.0, show_default=True, help="Exponent of the priority.")
@click.option("--beta", default=1.0, show_default=True, help="Exponent of the weight.")
@click.option("--decay", default=0.0, show_default=True, help="Priority lost per use, share.")
@click.option("--seed", default=0, show_default=True, help="Seed of task order and draws.")
@click.option("--connections", default=1024, show_default=True, help="At most so many.")
@click.option("--keys", type=click.Path(path_type=Path), help="service.json of keygen.")
@evict.options
def serve(
    folder: Path,
    bind: str,
    map_gib: float,
    lease_s: float,
    max_staleness: int,
    groups_per_step: int,
    min_base: int,
    straggler_s: float,
    draw_s: float,
    sampler: str,
    reuse: int,
    cooldown: int,
    alpha: float,
    beta: float,
    decay: float,
    seed: int,
    connections: int,
    keys: Path | None,
    **retain: Any,
) -> None:
    """Serve the store in a folder until SIGTERM or SIGINT."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s buffer %(levelname)s %(message)s")
    _check_range("lease-s", lease_s, 0.001, LONGEST_S)
    _check_range("straggler-s", straggler_s, 0, LONGEST_S)
    _check_range("draw-s", draw_s, 0, LONGEST_S)
    _check_range("max-staleness", max_staleness, 0, 1 << 31)
    _check_range("groups-per-step", groups_per_step, 1, messages.GROUPS_LIMIT)
    _check_range("min-base", min_base, 1, messages.SLOTS_LIMIT)
    _check_range("seed", seed, 0, 1 << 63)
    _check_range("connections", connections, 1, 1 << 20)
    sampling = samplers.Sampling(sampler, reuse, cooldown, alpha, beta, decay)
    samplers.make(sampling)
    service_keys = load(ServiceKeys, keys) if keys else None
    check_bind(bind, "bind", encrypted=service_keys is not None)
    retention = evict.limits(**retain)
    if retention.nbytes is not None and retention.nbytes > map_gib * (1 << 30):
        raise UserError(
            f"retain-gib {retain['retain_gib']} is more than map-gib {map_gib}: the map would be "
            "full before anything is evicted; raise map-gib or lower retain-gib"
        )
    settings = Settings(
        lease_s,
        max_staleness,
        groups_per_step,
        sampling,
        seed,
        min_base=min_base,
        straggler_s=straggler_s,
        retention=retention,
        draw_s=draw_s,
    )
    _allow_files(connections)
    _keep_freed_memory()
    if bind.startswith("ipc://"):
        folder_lock.own_socket(Path(bind.removeprefix("ipc://")))  # until the process ends
    store = Store(folder, map_gib=map_gib)
    try:
        service = Service(store, settings, bind, service_keys, connections)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.stop())
        click.echo(f"r3l-buffer ready {service.endpoint}")
        sys.stdout.flush()
        service.run()
    finally:
        store.close()


@commands.command()
@click.argument("folder", type=click.Path(path_type=Path))
def keygen(folder: Path) -> None:
    """Write service.json and client.json, for a service that others may connect to."""
    for path in generate(folder):
        click.echo(str(path))


for command in (*tools.COMMANDS, evict.evict):
    commands.add_command(command)


def _check_range(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UserError(f"{name} {value}: must be {least} to {most}")


def _allow_files(connections: int) -> None:
    """Every connection takes a file descriptor; raise UserError if there are too few."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE_FILES
    if most != resource.RLIM_INFINITY and most < needed:
        raise UserError(
            f"connections {connections}: need {needed} open files, this system allows {most} "
            "(ulimit -n); ask for fewer"
        )
    wanted = max(now, needed + SILENT_FILES)
    allowed = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def _keep_freed_memory() -> None:
    """Have glibc keep what large messages took, up to 32 MiB, for the next ones.

    Given back to the kernel it is faulted in again page by page, which costs more than copying.
    """
    with suppress(OSError, AttributeError):  # another C library has its own ways
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def main() -> None:
    """Entry point: errors of the user are one line on stderr and exit code 2."""
    try:
        commands.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.exceptions.Abort:
        sys.exit(130)
    except (UserError, NotFound, SchemaVersionError) as error:  # a wrong name is the user's too
        click.echo(f"r3l-buffer: {error}", err=True)
        sys.exit(2)
    except (R3LError, OSError, lmdb.Error) as error:  # a damaged file, a full disk, a closed pipe
        click.echo(f"r3l-buffer: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
