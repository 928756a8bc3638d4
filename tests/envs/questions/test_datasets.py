"""Problems read from JSON-lines files and Hugging Face data sets."""

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs import registry
from envs.questions.datasets import BEFORE, load
from envs.questions.math_problems import ProblemTasks
from r3l.errors import UserError
from r3l.files import hub_data_set
from tests.r3l.hostile import TEXTS


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"question": "q", "answer": "Half of 1,000.\n#### 1,000"}, "q", "1000"),
        ({"problem": "q", "solution": r"So \boxed{\frac{1}{2}}."}, "q", r"\frac{1}{2}"),
        ({"problem": "q", "answer": "$x$", "solution": "s"}, "q", "x"),
        ({"question": "q", "final_answer": ["1", "$2$"]}, "q", "1, 2"),
        ({"prompt": "q", "solution": "34"}, "q", "34"),
        ({"prompt": "q", "answer": 34}, "q", "34"),
        ('{"prompt": "q", "answer": 1e-7}', "q", "0.0000001"),
        ('{"prompt": "q", "answer": 1E+3}', "q", "1000"),
        ('{"prompt": "q", "answer": 0.30000000000000000001}', "q", "0.30000000000000000001"),
        ('{"prompt": "q", "answer": -6.02e99}', "q", r"-6.02 \times 10^{99}"),
        ('{"prompt": "q", "answer": [1e2, "$x$"]}', "q", "100, x"),
        ({"prompt": "q", "answer": "#### 1, 2"}, "q", "1, 2"),
        ({"prompt": "a\u2028b\u0085c", "answer": "3"}, "a\u2028b\u0085c", "3"),
        (
            {
                "prompt": [
                    {"role": "system", "content": "Be exact."},
                    {"role": "user", "content": "q"},
                ],
                "answer": "5",
            },
            "Be exact.\n\nq",
            "5",
        ),
        (
            {
                "prompt": [{"role": "user", "content": "q"}],
                "reward_model": {"ground_truth": "5"},
            },
            "q",
            "5",
        ),
    ],
)
def test_rows_of_every_data_set_in_use_are_read(file, row, prompt, answer):
    (problem,) = load("math", "train", file(row))
    assert (problem.prompt, problem.answer) == (prompt, answer)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((), "is empty"),
        (('{"prompt": "q"',), "line 1 is not JSON"),
        (({"prompt": "q", "answer": "1"}, {"answer": "1"}), "line 2: contains no problem text"),
        (({"prompt": "q"},), "line 1: has no reference answer"),
        ((["q", "1"],), "line 1: must be an object"),
        (('{"prompt": "q", "answer": "1"}', "[" * 99999), "line 2 is not JSON"),
        (({"prompt": "q \ud83d", "answer": "1"},), "line 1: its prompt holds half"),
        (({"id": "\ud83d", "prompt": "q", "answer": "1"},), "line 1: its id holds half"),
        (('{"prompt": "q", "answer": NaN}',), "line 1: its reference answer is nan"),
        (
            ({"prompt": [{"role": "assistant", "content": "q"}], "answer": "1"},),
            "line 1: .*roles assistant",
        ),
        *(
            (({"prompt": "q", "answer": "1", name: value},), f"line 1: its {name} ")
            for name, value in (
                ("images", ["a.png"]),
                ("image", {"bytes": ""}),
                ("choices", ["1", "2"]),
                ("options", "A) 1"),
                ("tools", [{}]),
                ("system", "be brief"),
                ("context", ["x"]),
                ("story", {"en": "x"}),
                *((name, "x") for name in "text table input instruction code facts".split()),
                ("table", [[1]]),
            )
        ),
        (({"prompt": "p", "question": "q", "answer": "1"},), "line 1: its prompt and question di"),
        (({"prompt": "p", "problem": ["q"], "answer": "1"},), "line 1: its prompt and problem di"),
        (({"prompt": "p", "answer": {"value": 1}},), "line 1: its reference answer is an object"),
        (({"prompt": "p", "answer": [{"value": 1}]},), "line 1: its reference answer is an obj"),
        *(
            (({"prompt": [{"role": "user", "content": "q"} | more], "answer": "1"},), says)
            for more, says in (
                ({"name": "Ann"}, "line 1: the name of its messages"),
                ({"tool_calls": [{}]}, "line 1: the tool_calls of"),
                ({"content": [{"type": "image_url", "image_url": ""}]}, "line 1: the content of"),
                ({"content": None}, "line 1: the content of"),
                ({"content": []}, "line 1: the content of"),
            )
        ),
    ],
)
def test_a_file_that_holds_no_problems_is_refused_by_name_and_line(file, rows, says):
    with pytest.raises(UserError, match=says) as caught:
        load("math", "train", file(*rows))
    assert "math.train" in str(caught.value) and "\n" not in str(caught.value)


@given(st.lists(st.fixed_dictionaries({"id": TEXTS, "prompt": TEXTS, "answer": TEXTS})))
def test_every_row_becomes_a_task_of_its_own_or_the_file_is_refused(rows):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        ascii_only = any("\ud83d" in "".join(row.values()) for row in rows)
        lines = (json.dumps(row, ensure_ascii=ascii_only) for row in rows)
        file.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        try:
            tasks = ProblemTasks("math", str(file), None).tasks("train", 99)
        except UserError as error:
            assert "env option math.train" in str(error)
        else:
            assert len({task.task_id for task in tasks}) == len(rows)


def test_what_a_question_is_about_comes_before_it_and_empty_fields_change_nothing(file):
    rows = [
        {
            "question": "How many?",
            "context": "Two cows.",
            "answer": "2",
            "images": [],
            "tools": None,
        },
        {
            "prompt": [{"role": "user", "content": [{"type": "text", "text": "q"}] * 2}],
            "answer": "1",
        },
    ]
    prompts = [problem.prompt for problem in load("math", "train", file(*rows))]
    assert prompts == ["Two cows.\n\nHow many?", "q\nq"]


@pytest.mark.parametrize("name", BEFORE)
def test_a_text_that_a_question_is_about_is_shown_once_under_each_name(file, name):
    rows = [
        {"question": "How many?", name: " Two cows. ", "answer": "2"},
        {"question": "Two cows. How many?", name: "Two cows.", "answer": "2"},
    ]
    prompts = [problem.prompt for problem in load("math", "train", file(*rows))]
    assert prompts == ["Two cows.\n\nHow many?", "Two cows. How many?"]


def test_a_copy_of_a_question_or_of_its_part_changes_nothing(file):
    asked = [{"role": "user", "content": "2+3? Be brief."}]
    row = {"prompt": asked, "question": "2+3?", "instruction": "Be brief.", "answer": "5"}
    (problem,) = load("math", "train", file(row))
    assert problem.prompt == "2+3? Be brief."


def test_long_and_repeated_names_of_problems_stay_apart(file):
    rows = [{"id": name, "prompt": "q", "answer": "1"} for name in ("a", "a", "a#2", "題" * 190)]
    found = [problem.id for problem in load("math", "train", file(*rows, rows[-1]))]
    assert found == ["a", "a#2", "a#2#2", "題" * 66, "題" * 66 + "#2"]


def test_a_missing_file_is_named_with_what_else_can_be_given():
    with pytest.raises(UserError, match=r"gsm8k\.eval: /no/such\.jsonl: .*@split"):
        registry.tasks("gsm8k", {"eval": "/no/such.jsonl"}, "eval", 1)


def test_a_data_set_of_the_hub_is_loaded_by_repository_configuration_and_split(monkeypatch):
    asked = []
    monkeypatch.setattr(
        hub_data_set, "rows", lambda name: asked.append(name) or [{"question": "q", "answer": "1"}]
    )
    load.cache_clear()
    (task,) = registry.tasks("gsm8k", {}, "eval", 5)
    assert asked == ["openai/gsm8k:main@test"]
    assert task.options == {"prompt": "q", "answer": "1", "attempts": 1}
    load.cache_clear()


def test_a_missing_package_is_one_line_with_the_install_command(monkeypatch):
    monkeypatch.setattr("envs.requirements.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"math_verify; .*'r3l\[math\]'$"):
        registry.make("gsm8k")
