"""Real short runs that must raise an alarm, and good ones that must not: `python -m lab.alarms`.

cases ─► r3l-launch, one run after the other ─► progress.jsonl, doctor ─► lab/lines/alarms.jsonl

Runs that are found in the file with the same settings are not made again.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click

from lab.alarms.cases import BAD, CASES, GOOD, RUNS, SAYS, Case
from lab.dry_run import DRY_RUN, show_launch
from lab.results.lines import DOCS, LINES, ROOT, append, digest, processor
from launch.inspection import snapshot
from launch.inspection.evidence import Evidence
from launch.inspection.learning import Reason, heading, of_evidence
from r3l.errors import UserError
from r3l.run.files.json_lines import GrowingFile, parse_lines
from r3l.run.files.progress_lines import EvalLine, StepLine, from_json
from r3l.run.files.run_folder import RunFolder
from r3l.run.process.end_with_parent import end_with

FILE = "alarms.jsonl"
PAGE = "alarms.md"
LIMIT_S = 1200.0  # of one run
Line = dict[str, Any]
TEMPLATE = Path(__file__).with_name("page.md")


@click.command()
@click.option("--only", multiple=True, help="a case or an alarm; several times for several")
@click.option("--seeds", type=click.IntRange(min=1), help="runs of a case at most")
@click.option("--lines", type=click.Path(path_type=Path), default=LINES, help="results folder")
@click.option("--page", is_flag=True, help="write the page, and make no run")
@DRY_RUN
def main(only: Sequence[str], seeds: int | None, lines: Path, page: bool, dry_run: bool) -> None:
    """Make the missing runs, the first of each case before the second of any. Print the table."""
    try:
        chosen = [] if page else chosen_cases(only)
        made = {(line["case"], line["seed"]) for line in read(lines) if today(line)}
        for seed, case in product(range(seeds or RUNS), chosen):
            if seed >= case.seeds or (case.name, seed) in made:
                continue
            if dry_run:
                show_launch(case.arguments("RUN", seed))
                continue
            append(lines / FILE, line := measure(case, seed))
            click.echo(f"{case.name}, seed {seed}: {outcome(line)}")
        text = table(read(lines))
        if page and not dry_run:
            folder = DOCS if lines == LINES else lines
            page_text = TEMPLATE.read_text("utf-8").replace("{table}", text)
            (folder / PAGE).write_text(page_text, "utf-8")
        click.echo(text, nl=False)
    except UserError as error:
        click.echo(f"lab.alarms: {error}", err=True)
        sys.exit(2)


def chosen_cases(only: Sequence[str]) -> list[Case]:
    """Returns the cases that are named, or that raise a named alarm. Raises UserError for another
    name."""
    if unknown := [name for name in only if name not in CASES and name not in SAYS]:
        raise UserError(
            f"--only {unknown[0]}: unknown; cases are {', '.join(CASES)}; alarms {', '.join(SAYS)}"
        )
    return [case for case in CASES.values() if not only or {case.name, *case.raises} & set(only)]


def measure(case: Case, seed: int) -> Line:
    """Makes one run and returns its line. Raises UserError if the run fails. The run stops if this
    process ends."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, began = Path(scratch) / "run", time.monotonic()
        words = case.arguments(str(folder), seed)
        command = [sys.executable, "-m", "launch.cli", *words]
        try:
            made = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
                cwd=ROOT,
                preexec_fn=partial(end_with, os.getpid(), signal.SIGTERM),
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{case.name}, seed {seed}: not done after {LIMIT_S:.0f} s") from None
        if made.returncode:
            raise UserError(
                f"{case.name}, seed {seed}: r3l-launch ended with {made.returncode}: "
                f"{made.stdout[-2000:]}{made.stderr[-2000:]}"
            )
        seconds = time.monotonic() - began
        start = f"{heading(Reason('', ''))}: "
        lines = parse_lines(GrowingFile(folder / "progress.jsonl", 0).new(), from_json).values
        steps = [line for line in lines if isinstance(line, StepLine)]
        tested = [line for line in lines if isinstance(line, EvalLine)]
        now = snapshot.take(RunFolder(folder))
        return {
            "case": case.name,
            "seed": seed,
            "setup": setup(case),
            "machine": processor(),
            "seconds": round(seconds, 1),
            "steps": len(steps),
            "attempts": sum(step.metrics["group/attempts"] for step in steps),
            "success": [line.success for line in tested],
            **told([line for line in lines if isinstance(line, StepLine | EvalLine)]),
            "console": sum(line.startswith(start) for line in made.stdout.splitlines()),
            "doctor": sorted(reason.name for reason in now.learns_nothing if reason.alarm),
        }


def told(lines: Sequence[StepLine | EvalLine]) -> dict[str, dict[str, int]]:
    """Returns each alarm and each note, with the step after which it was given first."""
    evidence, found = Evidence(), dict[str, dict[str, int]](alarms={}, notes={})
    for line in lines:
        if isinstance(line, StepLine):
            evidence.add_step(line)
        else:
            evidence.add_evaluation(line)
        for reason in of_evidence(evidence):
            found["alarms" if reason.alarm else "notes"].setdefault(reason.name, line.step)
    return found


def setup(case: Case) -> str:
    """Digest of the settings of a case."""
    return digest(case.arguments("RUN", 0))


def today(line: Line) -> bool:
    """Whether a line is of a run with the settings that its case has today."""
    return bool(line["setup"] == setup(CASES[line["case"]]))


def read(folder: Path) -> list[Line]:
    """Returns the lines of the file; [] without one. Raises UserError if it cannot be read."""
    file = folder / FILE
    if not file.exists():
        return []
    try:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    except ValueError as error:
        raise UserError(f"{file}: a line is not JSON ({error}); remove it") from None


def outcome(line: Line) -> str:
    """Says what became of a run."""
    raised, must = set(line["alarms"]), set(CASES[line["case"]].raises)
    if missing := must - raised:
        return f"lacks {', '.join(sorted(missing))}"
    if raised and not must:
        return f"false: {', '.join(sorted(raised))}"
    return f"as it should be ({line['seconds']:.0f} s)"


def table(lines: Sequence[Line]) -> str:
    """Returns how many runs raised each alarm that they must raise, and which alarms the good runs
    raised."""
    known = {name: [line for line in lines if line["case"] == name and today(line)]
             for name in CASES}  # fmt: skip
    rows = ["| alarm | it says | when | raised | by doctor at the end |", "|---|---|---|---|---|"]
    good = [line for case in GOOD for line in known[case.name]]
    for name, (says, when) in SAYS.items():
        runs = [line for case in BAD if name in case.raises for line in known[case.name]]
        raised = sum(name in line["alarms"] and line["console"] > 0 for line in runs)
        at_end = sum(name in line["doctor"] for line in runs)
        rows.append(f"| {name} | {says} | {when} | {raised} of {len(runs)} | {at_end} |")
    rows += ["", "| good runs | runs | false alarms | notes |", "|---|---|---|---|"]
    for case in GOOD:
        runs = known[case.name]
        false = [name for line in runs for name in line["alarms"]]
        notes = sorted({name for line in runs for name in line["notes"]})
        rows.append(
            f"| {case.name} | {len(runs)} | {len(false)}{_named(false)} | {', '.join(notes)} |"
        )
    wrong = sum(bool(line["alarms"]) for line in good)
    rows += ["", f"{wrong} of {len(good)} good runs had a false alarm."]
    if changed := [f"{line['case']}, {outcome(line)}" for line in lines if not today(line)]:
        rows += ["", f"With settings that were changed later: {'; '.join(sorted(changed))}."]
    return "\n".join(rows) + "\n"


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(sorted(set(names)))})" if names else ""


if __name__ == "__main__":
    main()
