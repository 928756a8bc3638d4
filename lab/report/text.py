"""The text of the overview and of four pages of results, by the templates in pages/."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.real_model import page as real_model
from lab.report import advice, gpu, parts, rare, regime, replay, smollm2
from lab.results import cells, page, wall_clock
from lab.results.__main__ import finished
from lab.results.findings import policies
from lab.results.lines import DOCS, LINES, read_lines
from lab.results.statistics import Record
from lab.where_it_pays import sentences

TEMPLATES = Path(__file__).parent / "pages"


@dataclass(frozen=True)
class Lines:
    """The lines that the pages are made of."""

    records: Sequence[Record]
    warm: dict[str, Record]
    systems: Sequence[Record]
    real_model: Sequence[dict[str, Any]]
    gradients: Sequence[dict[str, Any]]
    gpu: Sequence[dict[str, Any]]
    everything: sentences.Everything

    @classmethod
    def read(cls, folder: Path = LINES) -> "Lines":
        """Reads the lines of a folder."""
        from lab.results.experiments import gradients_setup_of

        return cls(
            records=finished(folder),
            warm=policies(read_lines(folder / "warm.jsonl", cells.setup_of)),
            systems=read_lines(folder / "e5.jsonl", wall_clock.setup_of),
            real_model=read_lines(folder / real_model.FILE.name),
            gradients=read_lines(folder / "e4.jsonl", gradients_setup_of),
            gpu=gpu.read(folder / "gpu.jsonl"),
            everything=sentences.Everything.read(folder),
        )


PICTURES: dict[str, Callable[[Lines, Path], None]] = {
    "results/overview.svg": lambda lines, out: regime.overview(
        lines.records, lines.systems, lines.real_model, out
    ),
    "results/map.svg": lambda lines, out: regime.regime_map(lines.records, lines.warm, out),
    "results/remarks.svg": lambda lines, out: regime.remarks(lines.records, out),
    "results/curves.svg": lambda lines, out: regime.curves(lines.records, out),
    "results/parts.svg": lambda lines, out: parts.forest(lines.records, out),
    "results/rates.svg": lambda lines, out: parts.rates(lines.records, out),
    "results/easiest.svg": lambda lines, out: parts.easiest(lines.records, out),
    "results/long-row.svg": lambda lines, out: parts.long_row(lines.records, lines.gradients, out),
    "results/advice.svg": lambda lines, out: advice.draw(lines.records, out),
    "results/pairs.svg": lambda lines, out: smollm2.pairs(lines.real_model, out),
    "results/guidance.svg": lambda lines, out: smollm2.guidance(lines.real_model, out),
    "results/real-model.svg": lambda lines, out: smollm2.learning(lines.real_model, out),
    "results/where-rare.svg": lambda lines, out: rare.courses(lines.everything.rare, out),
    "results/gpu-steps.svg": lambda lines, out: gpu.steps(lines.gpu, out),
    "replay/worth.svg": lambda lines, out: replay.worth(lines.records, out),
}


def render(lines: Lines, folder: Path = LINES, docs: Path = DOCS) -> dict[Path, str]:
    """The text of every page by its path."""
    values = page.values(lines.records, folder) | {
        "cost": sentences.cost_of(lines.everything.rows),
        "missing": sentences.missing(lines.everything),
        "where_rare": rare.rows(lines.everything.rare),
        "pretrained": sentences.pretrained(lines.everything.rows),
    }
    return page.filled(TEMPLATES, values, docs)


def write(lines: Lines, docs: Path = DOCS) -> None:
    """Write the pages and pictures below `docs`."""
    for path, text in render(lines, docs=docs).items():
        path.write_text(text, encoding="utf-8")
    for name, draw in PICTURES.items():
        draw(lines, docs / name)
