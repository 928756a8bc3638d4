"""The command `r3l-buffer evict`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import click
from msgspec.structs import asdict

from buffer.client.clients import BufferClient
from buffer.groups import retention
from buffer.groups.index import Index
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.rows import Evicted
from buffer.storage.store import Store
from buffer.storage.store_path import check_store, store_path
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.settings.buffer import RetentionConfig

PATH = click.Path(path_type=Path)


@click.command()
@click.option("--endpoint", help="A running service, tcp://HOST:PORT.")
@click.option("--store", "folder", type=store_path, help="A store that is not being served.")
@click.option("--keys", type=PATH, help="learner.json of keygen.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.argument("limits", nargs=-1, required=True)
def evict(
    endpoint: str | None,
    folder: Path | None,
    keys: Path | None,
    dry_run: bool,
    limits: tuple[str, ...],
) -> None:
    """Remove trained, expired and evaluated groups, oldest first, until the limits hold.

    LIMITS are those of the section buffer.retention: groups=100 gib=2.5 hours=24 versions=50
    grace_s=0.
    """
    retention_limits = configuration.parse(RetentionConfig, configuration.apply_overrides(limits))
    if retention_limits.unlimited:
        raise click.UsageError("give a limit: groups=, gib=, hours= or versions=")
    if endpoint is not None:
        with BufferClient(endpoint, name="r3l-buffer evict", keys=keys, timeout_s=60) as client:
            step = client.would_evict if dry_run else client.evict
            gone = _until_done(lambda: step(retention_limits))
    elif folder is not None:
        gone = (_would_evict if dry_run else _evict)(folder, retention_limits)
    else:
        raise click.UsageError("give --endpoint or --store")
    click.echo(json.dumps(asdict(gone) | {"dry_run": dry_run}))


def _until_done(step: Callable[[], Evicted]) -> Evicted:
    gone = step()
    while gone.more:
        gone += step()
    return gone


def _would_evict(folder: Path, limits: RetentionConfig) -> Evicted:
    store = Store(folder, read_only=True)
    try:
        with store.read() as txn:
            return retention.would_evict(txn, limits, time.time())
    finally:
        store.close()


def _evict(folder: Path, limits: RetentionConfig) -> Evicted:
    check_store(folder)
    store = Store(folder, map_gib=None)
    try:
        config = RunConfig()
        index = Index.load(store, config.buffer)

        def step() -> Evicted:
            with store.write() as txn:
                work = UnitOfWork(txn, index, config, time.time())
                gone = retention.evict(work, limits)
                work.finish()
            return gone

        return _until_done(step)
    finally:
        store.close()
