"""Finding a final answer in a text."""

import pytest

from envs.questions.final_answer import boxed, stated, tagged


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{3}", "3"),
        (r"\boxed{1} or rather \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\fbox{x^{2}}", "x^{2}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{3", None),
        (r"\boxed{2} and then \boxed{never closed", "2"),
        ("3", None),
        ("", None),
    ],
)
def test_the_last_closed_box_holds_the_answer(text, answer):
    assert boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("Answer: 12", "12"),
        ("**Final answer:** $5$", "$5$"),
        ("The answer is: 1\nThe answer is: 2", "2"),
        ("my answer is 3", None),
        ("#### ", None),
    ],
)
def test_a_stated_answer_follows_its_mark_at_the_beginning_of_a_line(text, answer):
    assert stated(text) == answer


def test_the_last_tag_holds_the_answer():
    assert tagged("<answer>1</answer> no, <ANSWER>\n2\n</ANSWER>") == "2"
    assert tagged("<answer>1") is None
