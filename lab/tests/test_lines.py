"""Results files: what a line must have, and that a run has one."""

import json
from pathlib import Path

import pytest

from lab.results.lines import LINES, append, known, read_lines
from r3l.errors import UserError

RUN = {"experiment": "e0", "cell": "c", "variant": "grpo", "seed": 0, "setup": "s", "success": 1.0,
       "steps": 1, "attempts": 8,
       "curve": {"tokens": [9], "cpu": [0.5], "success_base": [None]}}  # fmt: skip


@pytest.mark.parametrize("name", ["e0", "e4", "e5", "e8", "warm", "real-model"])
def test_a_line_without_what_the_page_needs_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / f"{name}.jsonl"
    for text in ("{}", "[]", "3", '{"cell": 5, "step": "a", "experiment": null}'):
        file.write_text(text + "\n")
        with pytest.raises(UserError) as refused:
            read_lines(file)
        said = str(refused.value)
        assert said.startswith(f"{file}:1: ") and said.endswith("; delete the line")
        assert "\n" not in said


def test_a_line_whose_curve_has_gaps_is_refused(tmp_path: Path) -> None:
    curve = {"tokens": [9, 18], "cpu": [0.5], "success_base": [None]}
    append(tmp_path / "e0.jsonl", RUN | {"curve": curve})
    with pytest.raises(UserError, match=r"e0\.jsonl:1: .*curve .*length"):
        read_lines(tmp_path / "e0.jsonl")


def test_a_second_line_of_a_run_is_refused_with_the_place_of_the_first(tmp_path: Path) -> None:
    for seed in (0, 1, 0):
        append(tmp_path / "e0.jsonl", RUN | {"seed": seed})
    with pytest.raises(UserError, match=r"e0\.jsonl:3: .* also in line 1"):
        read_lines(tmp_path / "e0.jsonl")
    gradients = json.loads((LINES / "e4.jsonl").read_text().splitlines()[0])
    append(tmp_path / "e4.jsonl", gradients)
    assert len(read_lines(tmp_path / "e4.jsonl")) == 1
    append(tmp_path / "e4.jsonl", gradients)
    with pytest.raises(UserError, match=r"e4\.jsonl:2: 0 0 .*line 1"):
        read_lines(tmp_path / "e4.jsonl")


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "e0.jsonl") == []


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    assert known("--cell", ["a"], {"a": 1, "b": 2}) == ("a",)
    with pytest.raises(UserError, match=r"--cell 'c': .* a, b"):
        known("--cell", ["a", "c"], {"a": 1, "b": 2})
