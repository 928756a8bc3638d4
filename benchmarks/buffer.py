"""Speed of the group buffer beside its limits and its peers, in one interleaved run.

    python -m benchmarks.buffer                  # the table; redis-server on the PATH joins it

A group is 8 attempts of 1024 tokens (ids int32, log-probabilities float32, mask). Every
contestant puts the same groups, then hands out batches of 12, 16 requests under way at a time,
one contestant after the other in every round; the table shows medians over the rounds. CPU is that
of this process and of the server it talks to, per group. `put` is durable when it returns unless
the row says otherwise. The peers move bytes as they are. Our service checks what it takes, and a
client what it reads: every array of every drawn group (`draw, read`).
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

import click
import psutil

from benchmarks.buffer_contestants import CONTESTANTS, Figures, NotHere, Run

Rounds = dict[str, list[dict[str, Figures]]]


@click.command()
@click.option("--rounds", default=5, show_default=True)
@click.option("--groups", default=768, show_default=True, help="Groups per contestant and round.")
@click.option("--without", multiple=True, help="A contestant to leave out; may be repeated.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where stores are written.")
def main(rounds: int, groups: int, without: tuple[str, ...], folder: Path | None) -> None:
    """Run all contestants in turn and print the table of medians."""
    measured: Rounds = defaultdict(list)
    absent: dict[str, str] = dict.fromkeys(without, "left out")
    for number in range(rounds):
        for name, contestant in CONTESTANTS.items():
            if name in absent:
                continue
            with tempfile.TemporaryDirectory(prefix="r3l-bench-", dir=folder) as place:
                gc.collect()
                try:
                    figures = contestant(Run(Path(place), groups))
                    measured[name].append(figures)
                except NotHere as error:
                    absent[name] = str(error)
        print(f"round {number + 1} of {rounds}, load {psutil.getloadavg()[0]:.1f}", flush=True)
    print(table(measured))
    for name, reason in absent.items():
        print(f"{name}: not measured, {reason}")
    print(verdicts(measured))


def table(measured: Rounds) -> str:
    """Medians as a Markdown table."""
    lines = [
        "| contestant | what | groups/s | [min - max] | MB/s | CPU ms/group, client | server |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rounds in measured.items():
        for what in rounds[0]:
            rates = [figures[what].groups_per_s for figures in rounds]
            client = statistics.median(figures[what].client_ms for figures in rounds)
            server = statistics.median(figures[what].server_ms for figures in rounds)
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
        return statistics.median(figures[what].groups_per_s for figures in measured[name])

    def cost(what: str) -> float:
        ours = measured["r3l service"]
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
            ratio = rate("r3l service", what) / rate(against, what)
            lines.append(f"{what} / {against}: {ratio:.2f} ({asked})")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
