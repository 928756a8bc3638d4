"""Retention on the command line: options of `serve`, and the command `evict`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from buffer.client.clients import BufferClient
from buffer.groups import retention
from buffer.groups.index import Index
from buffer.groups.unit_of_work import Settings, UnitOfWork
from buffer.storage.rows import Evicted, Retention
from buffer.storage.store import Store
from r3l.errors import UserError

MOST = 1e9
_OPTIONS = (
    click.option("--retain-groups", type=int, help="Groups a store may hold."),
    click.option("--retain-gib", type=float, help="Size of all results it may hold, GiB."),
    click.option("--retain-hours", type=float, help="Age of the oldest group, hours."),
    click.option("--retain-versions", type=int, help="Age of the oldest group, policy versions."),
    click.option(
        "--retain-grace-s",
        type=float,
        default=600.0,
        show_default=True,
        help="Seconds a group stays after it was trained or dropped.",
    ),
)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The limits of a store, as options of a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def limits(
    retain_groups: int | None,
    retain_gib: float | None,
    retain_hours: float | None,
    retain_versions: int | None,
    retain_grace_s: float,
) -> Retention:
    """What the options say; raises UserError for a limit below 0 or above MOST."""
    values = (retain_groups, retain_gib, retain_hours, retain_versions, retain_grace_s)
    if any(value is not None and not 0 <= value <= MOST for value in values):
        raise UserError(
            f"retain-groups, -gib, -hours, -versions and -grace-s must be 0 to {MOST:g}"
        )
    return Retention(
        groups=retain_groups,
        nbytes=None if retain_gib is None else int(retain_gib * (1 << 30)),
        age_s=None if retain_hours is None else retain_hours * 3600,
        versions=retain_versions,
        grace_s=retain_grace_s,
    )


@click.command()
@click.option("--endpoint", help="A running service, tcp://HOST:PORT.")
@click.option("--store", "folder", type=click.Path(path_type=Path), help="A store nobody serves.")
@click.option("--keys", type=click.Path(path_type=Path), help="client.json of keygen.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@options
def evict(
    endpoint: str | None, folder: Path | None, keys: Path | None, dry_run: bool, **retain: Any
) -> None:
    """Remove trained, expired and evaluated groups, oldest first, until the limits hold."""
    wanted = limits(**retain)
    if wanted.unlimited:
        raise click.UsageError("give a limit: --retain-groups, -gib, -hours or -versions")
    if endpoint is not None:
        with BufferClient(endpoint, name="r3l-buffer evict", keys=keys, timeout_s=60) as client:
            gone = _until_done(lambda: client.evict(wanted, dry_run=dry_run))
    elif folder is not None:
        gone = _would_evict(folder, wanted) if dry_run else _evict(folder, wanted)
    else:
        raise click.UsageError("give --endpoint or --store")
    click.echo(json.dumps(asdict(gone) | {"dry_run": dry_run}))


def _until_done(step: Callable[[], Evicted]) -> Evicted:
    gone = step()
    while gone.more:
        gone += step()
    return gone


def _would_evict(folder: Path, wanted: Retention) -> Evicted:
    store = Store(folder, read_only=True)
    try:
        with store.read() as txn:
            return retention.summary(list(retention.plan(txn, wanted, time.time())))
    finally:
        store.close()


def _evict(folder: Path, wanted: Retention) -> Evicted:
    if not (folder / "data.mdb").exists():
        raise UserError(f"store {folder}: no store there (data.mdb is missing)")
    store = Store(folder, map_gib=None)
    try:
        index = Index.load(store)

        def step() -> Evicted:
            with store.write() as txn:
                work = UnitOfWork(txn, index, Settings(), time.time())
                gone = retention.evict(work, wanted)
                work.finish()
            return gone

        return _until_done(step)
    finally:
        store.close()
