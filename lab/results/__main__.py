"""Make the experiments of docs/results.md, and write the pages of its appendix and of
docs/replay/worth.md: `python -m lab.results`, `make results`.

Every run is a process of this module. When it has ended it appends one line to the file of its
experiment, in a single write; runs that are found there are not made again, so the command can be
stopped, killed and started at any time: its processes end with it. The pages are written again
after every run, from the files alone.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from lab.dry_run import DRY_RUN
from lab.results import page
from lab.results.cells import CELLS, Cell
from lab.results.experiments import EXPERIMENTS, MAP, VARIANTS, Run, runs, setup_of
from lab.results.lines import (
    LINES,
    POLICIES,
    ROOT,
    append,
    known,
    processor,
    read_lines,
)
from learner.warmup.recipe import RECORD
from r3l.errors import UserError
from r3l.run.process.end_with_parent import end_with

LEAVE_S = 20
_FOLDER = click.Path(path_type=Path, file_okay=False)


Running = set[subprocess.Popen[bytes]]
"""The processes that were started and have not ended."""


@click.command()
@click.option("--only", default=",".join(EXPERIMENTS), show_default=True, help="experiments")
@click.option("--cell", "cells", multiple=True, help="cells to run in; default all")
@click.option("--variant", "variants", multiple=True, help="variants to run; default all")
@click.option("--seeds", type=click.IntRange(min=1), default=6, show_default=True, help="at most")
@click.option(
    "--first-seed", type=click.IntRange(min=0), default=0, help="seeds before it are left"
)
@click.option(
    "--policy",
    type=click.IntRange(min=0),
    default=0,
    help="number of the warm policy of each cell: seed of its warm-up",
)
@click.option("--jobs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--lines", type=_FOLDER, default=LINES, help="folder of the results files")
@click.option("--policies", type=_FOLDER, default=POLICIES, help="folder of the warm policies")
@click.option("--page", "only_page", is_flag=True, help="write the pages and end")
@DRY_RUN
@click.option("--one", type=(str, str, str, int), default=None, hidden=True)
@click.option("--warm", default=None, hidden=True)
@click.option("--parent", type=int, default=None, hidden=True)
def main(
    only: str,
    cells: tuple[str, ...],
    variants: tuple[str, ...],
    seeds: int,
    first_seed: int,
    policy: int,
    jobs: int,
    lines: Path,
    policies: Path,
    only_page: bool,
    dry_run: bool,
    one: tuple[str, str, str, int] | None,
    warm: str | None,
    parent: int | None,
) -> None:
    """Make the missing runs and write the pages of the appendix and of docs/replay/worth.md."""
    try:
        if parent is not None:
            _end_with(parent)
        if warm is not None:
            replace(CELLS[warm], number=policy).warm(policies)
            return
        if one is not None:
            _make(_the_run(*one).with_policy(policy), lines, policies)
            return
        chosen = known("--only", only.split(","), EXPERIMENTS)
        known("--cell", cells, CELLS)
        known("--variant", variants, VARIANTS)
        found = finished(lines)
        wanted = [
            run
            for run in (run.with_policy(policy) for run in runs(chosen))
            if first_seed <= run.seed < seeds
            and (not cells or run.cell.name in cells)
            and (not variants or run.variant in variants)
            and (not policy or run.cell.withheld is not None)
        ]
        missing = [run for run in wanted if not any(_is(line, run) for line in found)]
        if dry_run:
            _show(wanted, [] if only_page else missing, policies)
            return
        page.write(found, lines)
        if not only_page and not _make_all(missing, jobs, lines, policies):
            sys.exit(1)
    except UserError as error:
        click.echo(f"lab.results: {error}", err=True)
        sys.exit(2)


def _end_with(parent: int) -> None:
    """Leave when the parent ends, with all that this process has started: SystemExit unwinds it."""

    def leave(*_: object) -> None:
        signal.alarm(LEAVE_S)  # which ends a process that does not get there
        sys.exit(1)

    signal.signal(signal.SIGTERM, leave)
    end_with(parent, signal.SIGTERM)


def _show(wanted: Sequence[Run], missing: Sequence[Run], policies: Path) -> None:
    """Build the configuration of every variant in every cell, and print what is missing: warm
    policies, then runs."""
    for run in {(run.cell.name, run.variant): run for run in wanted}.values():
        run.config(policies / run.cell.folder)
    for cell in {run.cell.name: run.cell for run in missing}.values():
        cell.shown(policies)
    for run in missing:
        click.echo(f"{run.experiment} {' '.join(map(str, run.key))}")
    click.echo(f"{len(missing)} of {len(wanted)} runs are missing")


def _the_run(experiment: str, cell: str, variant: str, seed: int) -> Run:
    return next(r for r in runs((experiment,)) if r.key == (cell, variant, seed))


def _is(line: dict[str, Any], run: Run) -> bool:
    found = (line["experiment"], line["cell"], line["variant"], line["seed"])
    return (*found, line.get("policy", 0)) == (run.experiment, *run.key, run.cell.number)


def _make(run: Run, lines: Path, policies: Path) -> None:
    """Make one run and append its line."""
    import asyncio

    from lab.results.alternate import alternate
    from r3l.training.measures.processor import fix_threads

    fix_threads(1)
    variant = VARIANTS[run.variant]
    config = run.config(run.cell.policy(policies))
    steps = 0 if run.variant == "warm" else run.cell.steps
    result = asyncio.run(
        alternate(
            config,
            steps=steps,
            tokens=run.tokens,
            lag=variant.lag,
            teacher=variant.teacher,
            stored=variant.stored,
        )
    )
    named = {"experiment": run.experiment, "cell": run.cell.name, "variant": run.variant}
    named |= _numbered(run.cell)
    line = named | {"seed": run.seed, "setup": run.setup(), "machine": processor()} | result
    append(lines / f"{run.experiment}.jsonl", line)


def _numbered(cell: Cell) -> dict[str, Any]:
    return {"policy": cell.number} if cell.number else {}


def _make_all(missing: Sequence[Run], jobs: int, lines: Path, policies: Path) -> bool:
    """Make the runs, `jobs` at a time, each after its warm policy; whether all ended well."""
    lines.mkdir(parents=True, exist_ok=True)
    policies.mkdir(parents=True, exist_ok=True)
    pool, good, running = ThreadPoolExecutor(jobs), True, Running()
    try:
        first = {run.cell.name: run for run in reversed(missing) if run.cell.withheld is not None}
        warmed = {
            name: pool.submit(_warm, run, policies, lines, running) for name, run in first.items()
        }

        def make(run: Run) -> str:
            if run.cell.name in warmed:
                warmed[run.cell.name].result()
            named = ["--one", run.experiment, *map(str, run.key), "--policy", str(run.cell.number)]
            return _spawn([*named, "--lines", str(lines), "--policies", str(policies)], running)

        making = {pool.submit(make, run): run for run in missing}
        for ended in as_completed(making):
            run, said = making[ended], ended.result()
            good = good and not said
            ending = f"failed\n{said}" if said else "done"
            click.echo(f"{run.experiment} {' '.join(map(str, run.key))}: {ending}")
            page.write(finished(lines), lines)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        _stop(running)
    return good


def _warm(run: Run, policies: Path, lines: Path, running: Running) -> None:
    """Warm the policy of a run's cell in a process of its own and append what was measured of it,
    unless that was measured before: on a processor of the same kind a policy is the same to the
    last bit. In a cell of the map the line names the experiment, unless that is the map."""
    cell = run.cell
    if not (policies / cell.folder / RECORD).exists():
        named = ["--warm", cell.name, "--policy", str(cell.number)]
        said = _spawn([*named, "--policies", str(policies)], running)
        if said:
            raise UserError(said.strip().splitlines()[-1].removeprefix("lab.results: "))
    quality = cell.warm(policies)
    file = lines / "warm.jsonl"
    other = {"experiment": run.experiment} if cell.world and run.experiment != MAP else {}
    line = {"cell": cell.name, "setup": cell.setup()} | _numbered(cell) | quality
    if not any(known.items() >= line.items() for known in read_lines(file)):
        append(file, line | other)
    click.echo(f"{cell.name}: warm, {quality}")


def _spawn(arguments: list[str], running: Running) -> str:
    """Run this module in a process of its own, on one thread: "" or what it said before it failed.
    The calling thread waits for it: the process ends with the thread that started it."""
    command = [sys.executable, "-m", "lab.results", "--parent", str(os.getpid()), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, env=environment, stdout=said, stderr=said, cwd=ROOT, start_new_session=True
        )
        running.add(process)
        code = process.wait()
        running.discard(process)
        said.seek(0)
        return said.read()[-2000:].decode(errors="replace") or f"exit code {code}" if code else ""


def _stop(running: Running) -> None:
    """End the processes, and kill what they have started and left."""
    left = list(running)
    for process in left:
        process.terminate()
    for process in left:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LEAVE_S + 1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def finished(lines: Path) -> list[dict[str, Any]]:
    """The runs of all results files. Raises UserError for one that this setup does not make."""
    return [line for name in EXPERIMENTS for line in read_lines(lines / f"{name}.jsonl", setup_of)]


if __name__ == "__main__":
    main()
