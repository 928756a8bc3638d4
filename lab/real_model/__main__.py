"""Make the experiments of docs/results/real-model.md: `python -m lab.real_model`."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import click

from benchmarks.gpu.whole_run import smi
from lab.real_model import calculator, page
from lab.real_model.doses import DOSES, WORKSHOP, warm, warm_calculator, warm_workshop
from lab.real_model.probe import probe
from lab.real_model.training import VARIANTS, train
from lab.results.lines import append, processor, read_lines

FOLDER = click.option("--out", type=click.Path(path_type=Path), required=True, help="for models")
DOSE = click.option("--dose", type=click.Choice([str(dose) for dose in DOSES]), required=True)
INTO = click.option(
    "--lines", type=click.Path(path_type=Path), default=page.FILE, help="results file"
)
SETTINGS = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
VARIANT = click.option("--variant", type=click.Choice(list(VARIANTS)), required=True)
SEED = click.option("--seed", type=int, required=True)
LEARNER = click.option("--learner", default="1cpu", show_default=True, help="as of r3l-launch")


@click.group()
def main() -> None:
    """Make what is missing, from SmolLM2 and its warm-ups to trained policies."""


@main.command("warm")
@FOLDER
@DOSE
def warm_command(out: Path, dose: str) -> None:
    """Make the warm-up of a dose."""
    warm(int(dose), out / "policies")


@main.command("probe")
@FOLDER
@DOSE
@INTO
@SETTINGS
def probe_command(out: Path, dose: str, lines: Path, settings: tuple[str, ...]) -> None:
    """Measure on a frozen policy what guidance brings."""
    named = {
        "kind": "probe",
        "machine": machine(),
        "dose": int(dose),
        "variant": "frozen",
        "seed": 0,
    }
    if not _there(lines, named):
        model = warm(int(dose), out / "policies")
        values = asyncio.run(probe(model, out / f"probe-{dose}.log", settings))
        append(lines, named | values)


@main.command("train")
@FOLDER
@DOSE
@VARIANT
@SEED
@LEARNER
@INTO
@SETTINGS
def train_command(out: Path, dose: str, variant: str, seed: int, lines: Path, **more: Any) -> None:
    """Make or continue a training run on sums."""
    named = {
        "kind": "train",
        "machine": machine(),
        "dose": int(dose),
        "variant": variant,
        "seed": seed,
    }
    if not _there(lines, named):
        model = warm(int(dose), out / "policies")
        folder = out / "runs" / f"dose-{dose}-{variant}-{seed}"
        values = train(model, variant, seed, folder, _words(**more))
        append(lines, named | values)


@main.command("workshop")
@FOLDER
@VARIANT
@SEED
@LEARNER
@INTO
@SETTINGS
def workshop_command(out: Path, variant: str, seed: int, lines: Path, **more: Any) -> None:
    """Make or continue a training run in the workshop."""
    named = {
        "kind": "workshop",
        "machine": machine(more["learner"]),
        "variant": variant,
        "seed": seed,
    }
    if not _there(lines, named):
        model = warm_workshop(out / "policies")
        folder = out / "runs" / f"workshop-{variant}-{seed}"
        values = train(model, variant, seed, folder, _words(**more), WORKSHOP)
        append(lines, named | values)


@main.command("calculator")
@FOLDER
@SEED
@LEARNER
@INTO
@SETTINGS
def calculator_command(out: Path, seed: int, lines: Path, **more: Any) -> None:
    """Make or continue a training run of the calculator agent, with GRPO."""
    named = {
        "kind": "calculator",
        "machine": machine(more["learner"]),
        "variant": "grpo",
        "seed": seed,
    }
    if not _there(lines, named):
        model, folder = warm_calculator(out / "policies"), out / "runs" / f"calculator-{seed}"
        words = [*calculator.RUN, *_words(**more)]
        values = train(model, "grpo", seed, folder, words, calculator.SETTINGS)
        append(lines, named | values)


@main.command("page")
def page_command() -> None:
    """Write the page."""
    page.write()


def _words(learner: str, settings: tuple[str, ...]) -> list[str]:
    """The arguments of r3l-launch that a command was given."""
    return ["--learner", learner, *settings]


def machine(learner: str = "1gpu") -> str:
    """The name of the first GPU, unless there is none or the learner uses none, or of the
    processor."""
    named = "" if "cpu" in learner or not shutil.which("nvidia-smi") else smi("name")
    return named if named.startswith("NVIDIA ") else processor()


def _there(file: Path, named: dict[str, object]) -> bool:
    """Whether the file has a line with these names."""
    return any(line.items() >= named.items() for line in read_lines(file))


if __name__ == "__main__":
    main()
