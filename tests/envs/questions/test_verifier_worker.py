"""Answers compared with math-verify, in the worker's process."""

import pytest

from envs.questions.datasets import load
from tests.envs.shared_data import shared


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1/2", "0.5"),
        (r"\frac{1}{2}", r"\dfrac12"),
        ("1300", r"1\,300"),
        ("1300", "1,300"),
        ("10", "1e1"),
        ("18", r"\$18.00"),
        ("18", "18."),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)"),
        (r"\text{Evelyn}", "Evelyn"),
        ("p - q", "-q+p"),
        (r"2\sqrt{13}", r"\sqrt{52}"),
        ("10%", "10"),
    ],
)
def test_an_answer_in_another_notation_is_right(verifier, gold, answer):
    assert verifier.check(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("357", "3, 5, 7", "wrong"),
        ("2", "3", "wrong"),
        ("p - q", "q - p", "wrong"),
        ("2", "", "unreadable"),
        ("2", "(" * 500, "unreadable"),
        ("2", "x" * 5000, "unreadable"),
    ],
)
def test_a_wrong_answer_is_wrong(verifier, gold, answer, verdict):
    assert verifier.check(gold, answer) == verdict


@pytest.mark.parametrize("name", ["gsm8k_test.jsonl", "math500.jsonl"])
def test_real_reference_answers_agree_with_themselves(verifier, name):
    problems = load("math", "eval", str(shared(name)))
    for problem in problems[::25]:
        for answer in (problem.answer, f" ${problem.answer}$.", rf"\boxed{{{problem.answer}}}"):
            assert verifier.check(problem.answer, answer) == "correct", (problem.answer, answer)
