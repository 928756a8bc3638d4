"""Reads, checks, copies and exports a store from the command line."""

import json
import sys
import time
from itertools import islice
from pathlib import Path

import click
from msgspec.structs import asdict

from buffer.client.clients import BufferClient
from buffer.storage.store import Store
from buffer.storage.store_path import store_path
from buffer.tools import group_facts, store_reads
from buffer.tools import verify as verification
from buffer.tools.json_values import plain
from buffer.tools.trace_export import write_traces
from r3l.errors import UserError
from r3l.run.process.command_line import echo
from r3l.views import attempt_view

SAY_S = 5.0  # between two lines about how far a command is
_store = click.argument("folder", metavar="RUN", type=store_path)
"""A run's name, its folder, or the folder of a store."""


@click.command()
@click.option("--endpoint", required=True, help="address of the service, tcp://HOST:PORT")
@click.option("--keys", type=click.Path(path_type=Path), help="client.json that keygen wrote")
def stats(endpoint: str, keys: Path | None) -> None:
    """Print the metrics of a running service as JSON."""
    with BufferClient(endpoint, name="r3l-buffer stats", keys=keys) as client:
        echo(json.dumps(asdict(client.stats()), indent=2))


@click.command(epilog=f"Names a filter may use: {', '.join(sorted(group_facts.NAMES))}.")
@_store
@click.argument("text", metavar="[FILTER]", default="")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="newest groups to show"
)
def ls(folder: Path, text: str, limit: int) -> None:
    """List groups, newest last. FILTER is a simple Python condition, such as "reward > 0.5 and env
    == 'workshop'". `reward` is a group's best reward. `done == 0` finds groups without
    trajectories."""
    accepts = group_facts.parse_filter(text) if text else None
    with Store(folder, read_only=True) as store:
        newest = filter(accepts, store_reads.rows(store, newest_first=True))
        found = list(islice(newest, limit + bool(accepts)))  # one more tells whether there are more
        total = store_reads.size(store) if accepts is None else len(found)
        regrades = store_reads.regrades(store)
        stale, share = store_reads.died_of_age(store)
    for row in reversed(found[:limit]):
        rewards = "no reward"
        if row["reward"] is not None:
            rewards = f"reward {row['reward']:.2f} mean {row['mean_reward']:.2f}"
        echo(
            f"{row['group']}  {row['purpose']:5} {row['state']:8} {row['resolved']}/{row['slots']} "
            f"slots  {rewards}  version {row['version']}  {row['env']}/{row['task']}  {row['tag']} "
            f"{row['cause']}".rstrip()
            + (f"  from {row['source']}" if row["source"] else "")
        )
    for each in regrades:
        echo(f"regraded from {each.store} by {each.env} {each.options}".rstrip(), err=True)
    died = f"; {stale} died of age, {share:.0%} of the trained and expired ones" if stale else ""
    more = " and more; raise --limit to see them" if accepts and total > limit else ""
    echo(f"{min(total, limit) if more else total} groups{more}{died}", err=True)


@click.command()
@_store
@click.argument("group_id")
def show(folder: Path, group_id: str) -> None:
    """Print every attempt of a group as a conversation, and every reflection.

    GROUP_ID may be abbreviated: 42 is g0000000042.
    """
    with Store(folder, read_only=True) as store:
        echo(attempt_view.text(store_reads.group(store, _full_id(group_id))))


@click.command()
@_store
@click.argument("step", type=int)
def replay(folder: Path, step: int) -> None:
    """Print the batch of a trained step, one JSON line per group. `weight`: importance weight.
    `recalled`: stored attempts that joined the group."""
    with Store(folder, read_only=True) as store:
        draw = store_reads.trained_draw(store, step)
    for group, weight in zip(draw.groups, draw.row.weights, strict=True):
        joined = [
            {"group_id": attempt.group_id} | plain(attempt.trajectory)
            for attempt in draw.recalled
            if attempt.into == group.group_id
        ]
        echo(json.dumps(plain(group) | {"weight": weight, "recalled": joined}))


@click.command()
@_store
@click.option(
    "--as",
    "form",
    type=click.Choice(["groups", "traces"]),
    default="groups",
    show_default=True,
    help="groups: JSON lines with all of it; traces: a file for each attempt, which the trace "
    "viewer of Hugging Face's hub opens, and a data card",
)
@click.option("--out", type=click.Path(path_type=Path), help="new folder for traces")
def export(folder: Path, form: str, out: Path | None) -> None:
    """Print every group in its current state, one JSON line per group. With --as traces, write the
    attempts as session traces instead."""
    if (form == "traces") != (out is not None):
        raise UserError("export: give --as traces and --out FOLDER together, or neither")
    with Store(folder, read_only=True) as store:
        if out is not None:
            echo(write_traces(store, folder, out))
            return
        for row in store_reads.rows(store):
            echo(json.dumps(plain(store_reads.group(store, row["group"]))))


class Pace:
    """Reports every SAY_S seconds how many groups were read so far, and how many per second."""

    def __init__(self, what: str, now: float) -> None:
        self._what, self._began, self._told = what, now, now

    def tell(self, done: int, total: int, now: float) -> None:
        """Reports if it is time. `done`: groups read so far. `total`: all groups. `now`: monotonic
        seconds."""
        if now < self._told + SAY_S:
            return
        self._told = now
        rate = done / (now - self._began)
        left = (total - done) / rate
        echo(
            f"{self._what} {done:,} of {total:,} groups, {rate:,.0f} a second, {left:,.0f} s left",
            err=True,
        )


@click.command()
@_store
def verify(folder: Path) -> None:
    """Check file, records, ledger and counts. Print one problem per line, and exit with code 1 if
    there are any. Reads the whole store, and reports its progress on stderr."""
    pace = Pace("checked", time.monotonic())
    with Store(folder, read_only=True) as store:
        problems = verification.verify(
            store, lambda done, total: pace.tell(done, total, time.monotonic())
        )
    for problem in problems:
        echo(problem)
    if problems:
        sys.exit(1)
    echo("clean")


@click.command()
@_store
@click.argument("target", type=click.Path(path_type=Path))
def compact(folder: Path, target: Path) -> None:
    """Write a compacted copy into an empty folder. A service may use the store meanwhile."""
    with Store(folder, read_only=True) as store:
        store.copy(target)
    echo(str(target))


COMMANDS = (stats, ls, show, replay, export, verify, compact)


def _full_id(text: str) -> str:
    """Completes an abbreviated group id: 42 and g42 become g0000000042."""
    number = text.removeprefix("g")
    return f"g{int(number):010d}" if number.isdecimal() and len(number) < 10 else text
