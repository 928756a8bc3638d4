"""The page of lab.sampler_study, from the lines of its runs and the prediction.

python -m lab.sampler_page lab/lines/samplers.jsonl > docs/replay/samplers.md
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, mean, stdev
from typing import Any

import click
from jinja2 import Environment, StrictUndefined

from lab.dry_run import DRY_RUN
from lab.results.lines import LINES
from r3l.errors import UserError

HERE = Path(__file__).parent
WINDOW = 5
"""Steps whose new attempts are counted together."""
PREDICTION = LINES / "samplers-prediction.json"


@dataclass(frozen=True)
class Run:
    """One run: its steps, as lab.sampler_study writes them."""

    sampler: str
    seed: int
    steps: Sequence[dict[str, Any]]

    @property
    def replayed(self) -> list[str]:
        """The groups that were trained again, one after another."""
        return [group for step in self.steps for group in step["replayed"]]

    def all(self, name: str) -> list[float]:
        """A fact of all groups that were trained again."""
        return [value for step in self.steps for value in step[name]]


def reached(steps: Sequence[dict[str, Any]]) -> bool:
    """Whether half of the new attempts of the last WINDOW steps succeeded."""
    return len(steps) >= WINDOW and mean(step["success"] for step in steps[-WINDOW:]) >= 0.5


def read(lines: Path) -> list[Run]:
    """Reads the runs of a file; none if there is no file. Raises UserError for a damaged line."""
    texts = lines.read_text(encoding="utf-8").splitlines() if lines.exists() else []
    runs = []
    for number, text in enumerate(texts, 1):
        try:
            runs.append(Run(**json.loads(text)))
        except (ValueError, TypeError):
            raise UserError(f"{lines}:{number}: no line of a run; delete the line") from None
    return runs


@click.command()
@click.argument("lines", type=click.Path(path_type=Path))
@DRY_RUN
def main(lines: Path, dry_run: bool) -> None:
    """Print the page."""
    click.echo(f"a page of {lines}" if dry_run else render(read(lines)), nl=dry_run)


def render(runs: Sequence[Run]) -> str:
    """Writes the page of runs, which must have each sampler and its seeds."""
    samplers = list(dict.fromkeys(run.sampler for run in runs))
    steps = {(run.sampler, run.seed): len(run.steps) for run in runs}
    seeds = sorted({run.seed for run in runs})
    whole = [seed for seed in seeds if all((name, seed) in steps for name in samplers)]
    first = samplers[0]
    rows = [_row([run for run in runs if run.sampler == name]) for name in samplers]
    predicted = json.loads(PREDICTION.read_text(encoding="utf-8"))
    each = {
        name: [steps[name, seed] / steps[first, seed] for seed in whole] for name in samplers[1:]
    }
    ratios = {name: geometric_mean(quotients) for name, quotients in each.items() if quotients}
    made = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    template = made.from_string((HERE / "sampler_study.md.j2").read_text(encoding="utf-8"))
    return template.render(
        rows=rows, seeds=seeds, whole=whole, first=first, samplers=samplers, steps=steps,
        ratios=ratios, predicted=predicted, best=_best(samplers, steps, whole),
        faster=", ".join(f"`{name}`" for name in ratios if max(each[name]) < 1),
        differ=[seed for seed in whole if _differ(runs, seed)],
        program=(HERE / "sampler_study.py").read_text(encoding="utf-8"),
    )  # fmt: skip


def _row(runs: Sequence[Run]) -> dict[str, Any]:
    counts = [len(run.steps) for run in runs]
    spreads, ages = ([value for run in runs for value in run.all(n)] for n in ("spread", "age"))
    return {
        "name": runs[0].sampler,
        "runs": len(runs),
        "reached": sum(reached(run.steps) for run in runs),
        "steps": mean(counts),
        "deviation": stdev(counts) if len(counts) > 1 else float("nan"),
        "contrast": mean(float(value > 0) for value in spreads),
        "age": mean(ages),
        "different": mean(len(set(run.replayed)) for run in runs),
        "most": max(run.replayed.count(group) for run in runs for group in set(run.replayed)),
    }


def _best(samplers: Sequence[str], steps: dict[tuple[str, int], int], seeds: Sequence[int]) -> str:
    """Says for each seed which samplers took the fewest steps."""
    said = []
    for seed in seeds:
        least = min(steps[name, seed] for name in samplers)
        names = [f"`{name}`" for name in samplers if steps[name, seed] == least]
        said.append(f"seed {seed}: {' and '.join(names)}")
    return "; ".join(said)


def _differ(runs: Sequence[Run], seed: int) -> bool:
    """Whether all samplers replayed different groups in the steps that all of them made."""
    own = [[step["replayed"] for step in run.steps] for run in runs if run.seed == seed]
    common = min(map(len, own))
    return len({json.dumps(steps[:common]) for steps in own}) == len(own)


if __name__ == "__main__":
    main()
