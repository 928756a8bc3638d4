"""The overview, the five pages of results and their pictures."""

import re
from pathlib import Path

import pytest

from lab.report import text
from lab.results.lines import APPENDIX, DOCS


@pytest.fixture(scope="module")
def lines() -> text.Lines:
    return text.Lines.read()


def test_the_pages_are_those_of_the_lines(lines: text.Lines) -> None:
    pages = text.render(lines)
    assert len(pages) == 5 and DOCS / "results.md" in pages
    for path, made in pages.items():
        assert made == path.read_text(encoding="utf-8"), path
        assert "\n> " not in made, f"{path}: a bound at the start of a line is a quotation"


def test_pictures_are_those_of_the_lines(lines: text.Lines, tmp_path: Path) -> None:
    for name in ("results/pairs.svg", "results/gpu-steps.svg"):
        text.PICTURES[name](lines, tmp_path / "made.svg")
        assert (tmp_path / "made.svg").read_bytes() == (DOCS / name).read_bytes(), name


def test_every_picture_is_on_a_page() -> None:
    shown = {
        (page.parent / found).resolve()
        for page in DOCS.rglob("*.md")
        for found in re.findall(r"\]\(([^)\s]+\.svg)\)", page.read_text(encoding="utf-8"))
    }
    drawn = {DOCS / name for name in text.PICTURES} | set((DOCS / "results").glob("*.svg"))
    assert drawn <= shown


def test_the_count_of_predictions_is_that_of_the_table() -> None:
    page = (APPENDIX / "predictions.md").read_text(encoding="utf-8")
    verdicts = re.findall(r"\| (right|wrong|undecided|not run) \|$", page, re.MULTILINE)
    words = r"Of (\d+) parts (\d+) were right, (\d+) wrong, (\d+) undecided, and (\d+)"
    said = re.search(words, page)
    assert said is not None
    counts = [verdicts.count(name) for name in ("right", "wrong", "undecided", "not run")]
    assert [int(count) for count in said.groups()] == [len(verdicts), *counts]
