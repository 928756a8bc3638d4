"""Make the experiments of docs/results/real-models.md: `python -m lab.real_model`."""

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.decorators import FC

from benchmarks.gpu.whole_run import smi
from lab.dry_run import DRY_RUN, show_launch
from lab.real_model import calculator, finals, page, rare, rare_page
from lab.real_model.doses import DOSES, WORKSHOP, warm, warm_calculator, warm_workshop
from lab.real_model.probe import SLOTS, TASKS, configured, probe
from lab.real_model.training import OF_THE_WORKSHOP, VARIANTS, arguments, train
from lab.real_model.worlds import WORLDS
from lab.results.lines import append, processor, read_lines
from r3l.errors import UserError
from r3l.run.process.command_line import OneLineGroup

FOLDER = click.option("--out", type=click.Path(path_type=Path), required=True, help="for models")
DOSE = click.option("--dose", type=click.Choice([str(dose) for dose in DOSES]), required=True)


def into(known: Path) -> Callable[[FC], FC]:
    """Returns the option of a results file, by default `known`. Another has its name, too."""

    def check(_: click.Context, __: click.Parameter, given: Path) -> Path:
        if given.name != known.name:  # read_lines knows what a line needs by the name of its file
            raise click.BadParameter(f"{given}: its name must be {known.name}")
        return given

    path = click.Path(path_type=Path)
    return click.option("--lines", type=path, default=known, callback=check, help="results file")


INTO = into(page.FILE)
SETTINGS = click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
VARIANT = click.option("--variant", type=click.Choice(list(VARIANTS)), required=True)
SEED = click.option("--seed", type=int, required=True)
LEARNER = click.option("--learner", default="1cpu", show_default=True, help="as of r3l-launch")


@click.group("lab.real_model", cls=OneLineGroup)
def main() -> None:
    """Make what is missing, from SmolLM2 and its warm-ups to trained policies."""


@main.command("warm")
@FOLDER
@DOSE
@DRY_RUN
def warm_command(out: Path, dose: str, dry_run: bool) -> None:
    """Make the warm-up of a dose."""
    warm(int(dose), out / "policies", dry_run=dry_run)


@main.command("probe")
@FOLDER
@DOSE
@INTO
@DRY_RUN
@SETTINGS
def probe_command(
    out: Path, dose: str, lines: Path, dry_run: bool, settings: tuple[str, ...]
) -> None:
    """Measure on a frozen policy what guidance brings."""
    named = {
        "kind": "probe",
        "machine": machine(),
        "dose": int(dose),
        "variant": "frozen",
        "seed": 0,
    }
    if _there(lines, named):
        return
    model = warm(int(dose), out / "policies", dry_run=dry_run)
    if dry_run:
        env = configured(model, settings).env
        click.echo(
            f"{model} would play {TASKS} tasks of {env.name} {env.options}, each {SLOTS} times"
        )
    else:
        values = asyncio.run(probe(model, out / f"probe-{dose}.log", settings))
        append(lines, named | values)


@main.command("train")
@FOLDER
@DOSE
@VARIANT
@SEED
@LEARNER
@INTO
@DRY_RUN
@SETTINGS
def train_command(
    out: Path, dose: str, variant: str, seed: int, lines: Path, dry_run: bool, **more: Any
) -> None:
    """Make or continue a training run on sums."""
    if variant in OF_THE_WORKSHOP:
        raise UserError(f"--variant {variant}: its teacher knows no sums; choose another variant")
    named = {
        "kind": "train",
        "machine": machine(),
        "dose": int(dose),
        "variant": variant,
        "seed": seed,
    }
    if not _there(lines, named):
        model = warm(int(dose), out / "policies", dry_run=dry_run)
        folder = out / "runs" / f"dose-{dose}-{variant}-{seed}"
        _make((model, variant, seed, folder, _words(**more)), lines, named, dry_run)


@main.command("workshop")
@FOLDER
@VARIANT
@SEED
@LEARNER
@INTO
@DRY_RUN
@SETTINGS
def workshop_command(
    out: Path, variant: str, seed: int, lines: Path, dry_run: bool, **more: Any
) -> None:
    """Make or continue a training run in the workshop."""
    named = {
        "kind": "workshop",
        "machine": machine(more["learner"]),
        "variant": variant,
        "seed": seed,
    }
    if not _there(lines, named):
        model = warm_workshop(out / "policies", dry_run=dry_run)
        folder = out / "runs" / f"workshop-{variant}-{seed}"
        _make((model, variant, seed, folder, _words(**more), WORKSHOP), lines, named, dry_run)


@main.command("calculator")
@FOLDER
@SEED
@LEARNER
@INTO
@DRY_RUN
@SETTINGS
def calculator_command(out: Path, seed: int, lines: Path, dry_run: bool, **more: Any) -> None:
    """Make or continue a training run of the calculator agent, with GRPO."""
    named = {
        "kind": "calculator",
        "machine": machine(more["learner"]),
        "variant": "grpo",
        "seed": seed,
    }
    if not _there(lines, named):
        model = warm_calculator(out / "policies", dry_run=dry_run)
        folder, words = out / "runs" / f"calculator-{seed}", [*calculator.RUN, *_words(**more)]
        _make((model, "grpo", seed, folder, words, calculator.SETTINGS), lines, named, dry_run)


@main.command("rare")
@FOLDER
@click.option("--world", "worlds", multiple=True, type=click.Choice(list(WORLDS)), help="all")
@click.option(
    "--variant", "variants", multiple=True, type=click.Choice(list(VARIANTS)), help="arms"
)
@click.option("--seed", "seeds", multiple=True, type=int, help="1, 2 and 3")
@click.option("--minutes", type=float, default=rare.MINUTES, show_default=True, help="of a run")
@LEARNER
@into(rare.FILE)
@click.option("--only", type=click.Choice(["runs", "finals"]), help="both")
@DRY_RUN
@SETTINGS
def rare_command(
    out: Path,
    worlds: tuple[str, ...],
    variants: tuple[str, ...],
    seeds: tuple[int, ...],
    minutes: float,
    learner: str,
    lines: Path,
    only: str | None,
    dry_run: bool,
    settings: tuple[str, ...],
) -> None:
    """Make or continue the runs where success is rare, one after the other. Then evaluate the
    policies of those that have ended."""
    runs = [*rare.wanted(worlds, variants, seeds)]
    warmed = rare.warm(out, lines, machine(learner), dry_run=dry_run, more=settings)
    complete = only == "finals" or rare.make(runs, warmed, learner, settings, minutes)
    if only != "runs":
        finals.make(runs, warmed)
    if not complete:
        sys.exit(1)


@main.command("page")
@DRY_RUN
def page_command(dry_run: bool) -> None:
    """Write the pages."""
    if dry_run:
        words = len(page.render(read_lines(page.FILE)).split())
        click.echo(f"{page.PAGE} would have {words} words")
        words = len(rare_page.render(read_lines(rare.FILE)).split())
        click.echo(f"{rare_page.PAGE} would have {words} words")
        return
    page.write()
    rare_page.write()


def _make(run: tuple[Any, ...], lines: Path, named: dict[str, Any], dry_run: bool) -> None:
    """Make or continue a run, given as for `train`, and append its line; a dry run prints the
    command instead."""
    if dry_run:
        show_launch(arguments(*run))
    else:
        append(lines, named | train(*run))


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
