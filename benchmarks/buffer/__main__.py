"""Benchmarks of the group buffer: `python -m benchmarks.buffer`, `make bench-buffer`.

python -m benchmarks.buffer              put and draw of the service alone, under a minute
python -m benchmarks.buffer throughput   the service, its limits and other stores
python -m benchmarks.buffer load         64 actors and 4 learners at once
python -m benchmarks.buffer peers        a good client next to bad ones
python -m benchmarks.buffer scale        a small and a large store
python -m benchmarks.buffer costs        CPU time of operations by the number of groups in flight
python -m benchmarks.buffer crowd        16 to 1,000 clients that put large results at once
python -m benchmarks.buffer large        a draw of 2 GB, and a draw beside a query without a match
"""

from pathlib import Path

import click

from benchmarks.buffer.costs import costs
from benchmarks.buffer.crowd import crowd
from benchmarks.buffer.large import large
from benchmarks.buffer.load import load
from benchmarks.buffer.peers import peers
from benchmarks.buffer.scale import scale
from benchmarks.buffer.throughput import service_alone, throughput


@click.group(invoke_without_command=True)
@click.option("--rounds", default=3, show_default=True, help="of the run without a sub-command")
@click.option("--groups", default=768, show_default=True, help="groups put and drawn in a round")
@click.option("--folder", type=click.Path(path_type=Path), help="place of the stores")
@click.pass_context
def main(context: click.Context, rounds: int, groups: int, folder: Path | None) -> None:
    """Measure the group buffer; without a sub-command, put and draw of the service alone."""
    if context.invoked_subcommand is None:
        service_alone(rounds, groups, folder)


for command in (throughput, load, peers, scale, costs, crowd, large):
    main.add_command(command)


if __name__ == "__main__":
    main()
