"""The figure of the README: what it compares, and what it says beside its lines."""

from itertools import pairwise
from pathlib import Path

from lab.readme_figure import STYLES, curves, draw
from lab.results.cells import BASES
from lab.results.experiments import setup_of
from lab.results.lines import LINES, read_lines


def test_the_rarer_success_is_the_fewer_steps_and_tokens_r3l_takes_of_grpos(tmp_path: Path) -> None:
    records = [
        line for name in ("e1", "e11") for line in read_lines(LINES / f"{name}.jsonl", setup_of)
    ]
    steps, tokens, cpu = found = curves(records)
    assert [base for base, _ in steps] == list(BASES)
    for curve in (steps, tokens):
        assert all(harder.value < easier.value for (_, easier), (_, harder) in pairwise(curve))
        assert [known.kind for _, known in curve] == ["="] * 4 + ["<"]  # GRPO did not get there
    assert all(known.value > 1 for _, known in cpu)  # beside GRPO without its reference model
    draw(found, tmp_path / "cost.svg")
    drawn = (tmp_path / "cost.svg").read_text("utf-8")
    assert "lower is cheaper" in drawn
    assert all(line in drawn for label in STYLES for line in label.splitlines())


def test_what_has_no_runs_is_left_out() -> None:
    assert curves([]) == [[], [], []]
