"""The command `r3l-buffer`, with `serve` and `keygen`. It imports its other subcommands."""

import logging
import signal
import sys
from pathlib import Path

import click
import lmdb

from buffer.sampling import samplers, task_samplers
from buffer.server.service import Service, rules_of
from buffer.storage.store import Store
from buffer.tools import commands as tools
from buffer.tools.import_command import import_
from buffer.viewer.view_command import view
from buffer.wire.curve_keys import ServiceKeys, generate, load
from r3l.errors import NotAllowed, NotFound, R3LError, SchemaVersionError
from r3l.run import config as configuration
from r3l.run.files.run_folder import ProcessStatus, RunFolder
from r3l.run.process.command_line import OneLineGroup, echo, version_option
from r3l.run.process.endpoints import check_bind

PATH = click.Path(path_type=Path)
ERRORS = {
    NotAllowed: 2, NotFound: 2, SchemaVersionError: 2,
    R3LError: 1, OSError: 1, lmdb.Error: 1,  # a damaged file, a full disk, a closed pipe
}  # fmt: skip


@click.group("r3l-buffer", cls=OneLineGroup, errors=ERRORS)
@version_option
def main() -> None:
    """Serve, inspect, check and copy the durable group buffer of r3l."""


@main.command()
@click.option("--config", "config_path", type=PATH, help="a run's config.yaml")
@click.option("--store", "folder", type=PATH, required=True, help="folder of the store")
@click.option("--bind", required=True, help="tcp://127.0.0.1:PORT; port 0: any free port")
@click.option("--keys", type=PATH, help="service.json that r3l-buffer keygen wrote")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def serve(
    config_path: Path | None, folder: Path, bind: str, keys: Path | None, overrides: tuple[str, ...]
) -> None:
    """Serve the store in a folder until SIGTERM or SIGINT. KEY=VALUE arguments are settings, such
    as buffer.lease_s=60."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s buffer %(levelname)s %(message)s")
    config = configuration.load(config_path, overrides)
    samplers.make(config.buffer.sampler)
    task_samplers.make(config.buffer.task_sampler)
    service_keys = load(ServiceKeys, keys) if keys else None
    check_bind(bind, "bind", encrypted=service_keys is not None)
    store = Store(folder, map_gib=config.buffer.map_gib)
    try:
        service = Service(store, rules_of(config), bind, service_keys)
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, lambda *_: service.stop())
        echo(f"r3l-buffer ready {service.endpoint}")
        sys.stdout.flush()
        run = RunFolder(folder.parent)
        if run.store == folder:
            run.report("buffer", ProcessStatus("ready", service.endpoint))
        service.run()
    finally:
        store.close()


@main.command()
@click.argument("folder", type=PATH)
def keygen(folder: Path) -> None:
    """Write the keys that a service, its clients and its learner need on a network."""
    for path in generate(folder):
        echo(str(path))


for command in (*tools.COMMANDS, import_, view):
    main.add_command(command)


if __name__ == "__main__":
    main()
