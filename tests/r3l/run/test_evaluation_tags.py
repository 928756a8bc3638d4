"""Tags and seeds of evaluations."""

import pytest

from r3l.run.evaluation_tags import EvalTag, attempt_seed, number_text


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        (EvalTag(0), "eval@0"),
        (EvalTag(40, 0.0), "eval@40@0"),
        (EvalTag(40, 0.1 + 0.2), "eval@40@0.30000000000000004"),
        (EvalTag(7, 1e-05), "eval@7@1e-05"),
    ],
)
def test_a_tag_reads_back_as_it_was_written(tag: EvalTag, text: str) -> None:
    assert str(tag) == text and EvalTag.parse(text) == tag


@pytest.mark.parametrize("text", ["", "mine", "eval", "eval@", "eval@x", "eval@1@x", "eval@1@0@0"])
def test_a_tag_of_another_form_is_none(text: str) -> None:
    assert EvalTag.parse(text) is None


def test_numbers_are_written_short_and_exactly() -> None:
    assert [number_text(n) for n in (0, 1.0, 0.4, 2.5)] == ["0", "1", "0.4", "2.5"]


def test_the_seed_of_an_attempt_depends_on_run_task_and_attempt_alone() -> None:
    assert attempt_seed(0, "keys/eval/000003") == 909839993
    seeds = {attempt_seed(s, t, a) for s in (0, 1) for t in ("a", "b") for a in (0, 1)}
    assert len(seeds) == 8
