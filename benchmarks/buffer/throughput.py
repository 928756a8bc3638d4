"""Speed of the service, of its upper limits and of other stores, in one interleaved run.

A group is 8 attempts of 1024 tokens (ids int32, log-probabilities float32, mask). Every contestant
puts the same groups, then hands out batches of 12, 16 requests under way at a time, one contestant
after the other in every round; the table shows medians over the rounds. CPU is that of this process
and of the server it talks to, per group. `put` is durable when it returns unless the row says
otherwise. The others move bytes as they are. Our service checks what it stores, and a client what
it reads: every array of every drawn group (`draw, read`).
"""

import gc
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import click
import psutil

from benchmarks.buffer.clock import Run, Speed, Unavailable
from benchmarks.buffer.limits import memcpy, raw_lmdb, raw_lmdb_in_flight, raw_zeromq
from benchmarks.buffer.others import bare_service, redis_everysec, sqlite_full, torchrl_memmap
from benchmarks.buffer.ours import r3l_service

OURS = "r3l service"
CONTESTANTS: dict[str, Callable[[Run], dict[str, Speed]]] = {
    OURS: r3l_service,
    "memcpy": memcpy,
    "raw ZeroMQ": raw_zeromq,
    "raw LMDB": raw_lmdb,
    "raw LMDB, 16 a commit": raw_lmdb_in_flight,
    "bare service": bare_service,
    "Redis AOF everysec": redis_everysec,
    "SQLite WAL full": sqlite_full,
    "torchrl memmap": torchrl_memmap,
}
Rounds = dict[str, list[dict[str, Speed]]]


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--groups", default=768, show_default=True, help="groups per contestant and round")
@click.option("--without", multiple=True, help="a contestant to leave out; may be repeated")
@click.option("--folder", type=click.Path(path_type=Path), help="place of the stores")
def throughput(rounds: int, groups: int, without: tuple[str, ...], folder: Path | None) -> None:
    """The service, its limits and other stores: a table of medians."""
    left_out = dict.fromkeys(without, "left out")
    names = [name for name in CONTESTANTS if name not in left_out]
    measured, absent = measure(names, rounds, groups, folder)
    print(table(measured))
    for name, reason in (left_out | absent).items():
        print(f"{name}: not measured, {reason}")
    if OURS in measured:
        print(verdicts(measured))


def service_alone(rounds: int, groups: int, folder: Path | None) -> None:
    """Put and draw of the service: a table of medians."""
    print(table(measure([OURS], rounds, groups, folder)[0]))


def measure(
    names: list[str], rounds: int, groups: int, folder: Path | None
) -> tuple[Rounds, dict[str, str]]:
    """The speeds of every round by contestant, and why others are missing."""
    measured: Rounds = defaultdict(list)
    absent: dict[str, str] = {}
    for number in range(rounds):
        for name in names:
            if name in absent:
                continue
            with tempfile.TemporaryDirectory(prefix="r3l-bench-", dir=folder) as place:
                gc.collect()
                try:
                    speeds = CONTESTANTS[name](Run(Path(place), groups))
                    measured[name].append(speeds)
                except Unavailable as error:
                    absent[name] = str(error)
        print(f"round {number + 1} of {rounds}, load {psutil.getloadavg()[0]:.1f}", flush=True)
    return measured, absent


def table(measured: Rounds) -> str:
    """Medians as a Markdown table."""
    lines = [
        "| contestant | what | groups/s | [min - max] | MB/s | CPU ms/group, client | server |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rounds in measured.items():
        for what in rounds[0]:
            rates = [speeds[what].groups_per_s for speeds in rounds]
            client = statistics.median(speeds[what].client_ms for speeds in rounds)
            server = statistics.median(speeds[what].server_ms for speeds in rounds)
            lines.append(
                f"| {name} | {what} | {statistics.median(rates):.0f} "
                f"| {min(rates):.0f} - {max(rates):.0f} "
                f"| {statistics.median(rates) * rounds[0][what].nbytes / 1e6:.0f} "
                f"| {client:.3f} | {server:.3f} |"
            )
    return "\n".join(lines)


def verdicts(measured: Rounds) -> str:
    """The required ratios and costs, as measured."""

    def rate(name: str, what: str) -> float:
        return statistics.median(speeds[what].groups_per_s for speeds in measured[name])

    def cost(what: str) -> float:
        ours = measured[OURS]
        return statistics.median(f[what].client_ms + f[what].server_ms for f in ours)

    lines = [
        f"CPU put {cost('put'):.2f} ms (0.30 asked), draw {cost('draw'):.2f} ms (0.15 asked), "
        f"{cost('draw, read'):.2f} ms with everything drawn read"
    ]
    for what, against, asked in [
        ("put", "raw LMDB", "0.90 asked"),
        ("put", "raw LMDB, 16 a commit", "no bound"),
        ("draw", "raw ZeroMQ", "0.50 asked"),
        ("put", "bare service", "no bound"),
        ("draw", "bare service", "no bound"),
        ("put", "Redis AOF everysec", "> 1 asked"),
        ("put", "SQLite WAL full", "> 1 asked"),
        ("put", "torchrl memmap", "> 1 asked"),
        ("draw", "Redis AOF everysec", "> 1 asked"),
    ]:
        if against in measured:
            ratio = rate(OURS, what) / rate(against, what)
            lines.append(f"{what} / {against}: {ratio:.2f} ({asked})")
    return "\n".join(lines)
