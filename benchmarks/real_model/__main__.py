"""Make the experiments of docs/results/real-model.md: `python -m benchmarks.real_model --help`."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.real_model.doses import DOSES, warm

OUT = click.option("--out", type=click.Path(path_type=Path), required=True, help="working folder")
DOSE = click.option("--dose", type=click.Choice([str(dose) for dose in DOSES]), required=True)


@click.group()
def main() -> None:
    """SmolLM2 from a cold start to training."""


@main.command("warm")
@OUT
@DOSE
def warm_command(out: Path, dose: str) -> None:
    """Make the cold start of a dose."""
    warm(int(dose), out / "policies")


if __name__ == "__main__":
    main()
