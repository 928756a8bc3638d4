"""Make the experiments of docs/results/real-model.md: `python -m benchmarks.real_model`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from benchmarks.real_model import page
from benchmarks.real_model.doses import DOSES, warm
from benchmarks.real_model.probe import probe
from benchmarks.real_model.training import VARIANTS, train
from benchmarks.results.lines import append, processor, read_lines

FOLDER = click.option("--out", type=click.Path(path_type=Path), required=True, help="for models")
DOSE = click.option("--dose", type=click.Choice([str(dose) for dose in DOSES]), required=True)
INTO = click.option(
    "--lines", type=click.Path(path_type=Path), default=page.FILE, help="results file"
)


@click.group()
def main() -> None:
    """Make what is missing, from SmolLM2 and its cold starts to trained policies."""


@main.command("warm")
@FOLDER
@DOSE
def warm_command(out: Path, dose: str) -> None:
    """Make the cold start of a dose."""
    warm(int(dose), out / "policies")


@main.command("probe")
@FOLDER
@DOSE
@INTO
def probe_command(out: Path, dose: str, lines: Path) -> None:
    """Measure on a frozen policy what guidance brings."""
    named = {"kind": "probe", "dose": int(dose), "variant": "frozen", "seed": 0}
    if not _there(lines, named):
        model = warm(int(dose), out / "policies")
        values = asyncio.run(probe(model, out / f"probe-{dose}.log"))
        append(lines, named | {"machine": processor()} | values)


@main.command("train")
@FOLDER
@DOSE
@click.option("--variant", type=click.Choice(list(VARIANTS)), required=True)
@click.option("--seed", type=int, required=True)
@INTO
def train_command(out: Path, dose: str, variant: str, seed: int, lines: Path) -> None:
    """Make or continue a training run."""
    named = {"kind": "train", "dose": int(dose), "variant": variant, "seed": seed}
    if not _there(lines, named):
        model = warm(int(dose), out / "policies")
        values = train(model, variant, seed, out / "runs" / f"dose-{dose}-{variant}-{seed}")
        append(lines, named | {"machine": processor()} | values)


@main.command("page")
def page_command() -> None:
    """Write the page."""
    page.write()


def _there(file: Path, named: dict[str, object]) -> bool:
    """Whether the file has a line with these names."""
    return any(line.items() >= named.items() for line in read_lines(file))


if __name__ == "__main__":
    main()
