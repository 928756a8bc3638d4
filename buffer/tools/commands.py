"""The commands that read, check, copy, export and import a store."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from msgspec.structs import asdict

from buffer.client.clients import BufferClient
from buffer.storage import folder_lock
from buffer.storage.store import Store
from buffer.storage.store_path import store_path
from buffer.tools import archive, filter, group_facts, jsonl, store_reads
from buffer.tools import verify as verification
from r3l.errors import NotFound
from r3l.views import attempt_view

IMPORT_MAP_GIB = 1024.0  # address space only: the file is as large as what it holds
_store = click.option(
    "--store", "folder", type=store_path, required=True, help="run, or folder of a store"
)


@contextmanager
def _reading(folder: Path) -> Iterator[Store]:
    store = Store(folder, read_only=True)
    try:
        yield store
    finally:
        store.close()


@click.command()
@click.option("--endpoint", help="address of a running service, tcp://HOST:PORT")
@click.option(
    "--store",
    "folder",
    type=store_path,
    help="run, or folder of a store, which is only read",
)
@click.option("--keys", type=click.Path(path_type=Path), help="client.json that keygen wrote")
def stats(endpoint: str | None, folder: Path | None, keys: Path | None) -> None:
    """Print the metrics of a running service, or the groups and drops of a store, as JSON."""
    if endpoint is not None:
        with BufferClient(endpoint, name="r3l-buffer stats", keys=keys) as client:
            click.echo(json.dumps(asdict(client.stats()), indent=2))
    elif folder is not None:
        with _reading(folder) as store:
            click.echo(json.dumps(store_reads.summary(store), indent=2))
    else:
        raise click.UsageError("give --endpoint or --store")


@click.command()
@_store
@click.option("--limit", default=50, show_default=True, help="newest groups to show")
def ls(folder: Path, limit: int) -> None:
    """List groups, one a line, the newest last."""
    _list(folder, lambda row: True, limit)


@click.command(epilog=f"Names a filter may use: {', '.join(sorted(group_facts.ROW_NAMES))}.")
@_store
@click.argument("text")
@click.option("--limit", default=50, show_default=True, help="newest groups to show")
def query(folder: Path, text: str, limit: int) -> None:
    """List the groups that pass a filter, such as "reward > 0.5 and env == 'workshop'".

    Comparisons, `in` with a list, and, or, not. `reward` is the best of a group's trajectories. The
    rewards of a group without a trajectory are None: only `reward == None` finds it.
    """
    _list(folder, filter.parse(text, group_facts.ROW_NAMES), limit)


@click.command()
@_store
@click.argument("group_id")
def show(folder: Path, group_id: str) -> None:
    """Print every attempt of a group as a conversation; a retry with what it corrects and its
    advice.

    GROUP_ID may be short: 42 is g0000000042.
    """
    with _reading(folder) as store:
        click.echo(attempt_view.text(store_reads.group(store, _full_id(group_id))))


@click.command()
@_store
@click.argument("step", type=int)
def replay(folder: Path, step: int) -> None:
    """Print the exact batch of a trained step, one JSON line per group.

    `weight`: importance weight that the sampler gave the group; 1 unless it was prioritised.
    `recalled`: stored attempts that joined the group, with the group each comes from.
    """
    with _reading(folder) as store:
        groups, gone = store_reads.replay(store, step)
        weights = store_reads.weights(store, step)
        recalled, lost = store_reads.recalled(store, step)
    for group in groups:
        weight = weights.get(group.group_id, 1.0)
        joined = [
            {"group_id": one.group_id} | jsonl.plain(one.trajectory)
            for one in recalled
            if one.into == group.group_id
        ]
        click.echo(json.dumps(jsonl.plain(group) | {"weight": weight, "recalled": joined}))
    if lost:
        raise NotFound(f"step {step}: {lost} of the attempts it recalled were evicted")
    if gone:
        raise NotFound(f"step {step}: {len(gone)} of its groups were evicted: {' '.join(gone)}")


@click.command()
@_store
@click.argument("target", type=click.Path(path_type=Path))
def export(folder: Path, target: Path) -> None:
    """Write the whole store into an empty folder, as tables of JSON lines."""
    with _reading(folder) as store:
        click.echo(json.dumps(archive.export(store, target)))


@click.command("import")
@click.option(
    "--store", "folder", type=click.Path(path_type=Path), required=True, help="new folder"
)
@click.argument("source", type=click.Path(path_type=Path))
def import_(folder: Path, source: Path) -> None:
    """Make a store from the folder that `export` wrote."""
    archive.check(source)
    with folder_lock.new_folder(folder, "store") as building:
        store = Store(building, map_gib=IMPORT_MAP_GIB)
        try:
            rows = archive.restore(source, store)
        finally:
            store.close()
    click.echo(json.dumps(rows))


@click.command()
@_store
def verify(folder: Path) -> None:
    """Check file, records, ledger and counts; exit code 1 and a line for every problem."""
    with _reading(folder) as store:
        problems = verification.verify(store)
    for problem in problems:
        click.echo(problem)
    if problems:
        sys.exit(1)
    click.echo("clean")


@click.command()
@_store
@click.argument("target", type=click.Path(path_type=Path))
def compact(folder: Path, target: Path) -> None:
    """Write a compacted copy into an empty folder, also while the store is being served."""
    with _reading(folder) as store:
        store.copy(target)
    click.echo(str(target))


COMMANDS = (stats, ls, query, show, replay, export, import_, verify, compact)


def _list(folder: Path, accepts: Callable[[Any], bool], limit: int) -> None:
    with _reading(folder) as store:
        found = [row for row in store_reads.rows(store) if accepts(row)]
    for row in found[-limit:] if limit > 0 else []:
        rewards = "no reward"
        if row["reward"] is not None:
            rewards = f"reward {row['reward']:.2f} mean {row['mean_reward']:.2f}"
        click.echo(
            f"{row['group']}  {row['purpose']:5} {row['state']:8} {row['resolved']}/{row['slots']} "
            f"slots  {rewards}  version {row['version']}  {row['env']}/{row['task']}  {row['tag']} "
            f"{row['cause']}".rstrip()
        )
    click.echo(f"{len(found)} groups", err=True)


def _full_id(text: str) -> str:
    """A group's id as the store has it: 42 and g42 are g0000000042."""
    number = text.removeprefix("g")
    return f"g{int(number):010d}" if number.isdecimal() and len(number) < 10 else text
