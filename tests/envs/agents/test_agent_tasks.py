"""Tasks are read from lines of JSON; a bad line is named."""

from pathlib import Path

import pytest

from envs.agents.agent_tasks import Hidden, holds_answer, read_tasks, unknown_fields
from r3l.errors import UserError


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "t.jsonl").write_text(text)
    return str(tmp_path / "t.jsonl")


def test_tasks_name_their_split_or_are_divided(tmp_path: Path) -> None:
    given = write(tmp_path, '{"id": 1, "split": "eval"}\n\n{"id": "b", "q": 2}\n')
    tasks = read_tasks(given)
    assert [t.task_id for t in tasks.tasks("eval", 9)] == ["1"]
    others = read_tasks(write(tmp_path, "\n".join(f'{{"id": {n}}}' for n in range(100))))
    train, held_out = others.tasks("train", 999), others.tasks("eval", 999)
    assert len(train) + len(held_out) == 100 and 0 < len(held_out) < 30
    alone = read_tasks(write(tmp_path, '{"id": 1}'))
    assert alone.tasks("train", 9) == alone.tasks("eval", 9) != []


def test_a_line_ends_with_a_line_feed_only(tmp_path: Path) -> None:
    rows = '\ufeff{"id": 1, "q": "a\u2028b\u0085c"}\n\n{"id": 2}'
    assert len(read_tasks(write(tmp_path, rows)).tasks("train", 9)) == 2


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"q": 1}', "line 1: has no id"),
        ('{"id": 1}\n{"id": "1"}', "line 2: repeats id '1' of line 1"),
        ('{"id": 1, "split": "test"}', "split 'test'"),
        ("oops", "line 1: must be a JSON object"),
        ('{"id": 1, "q": "\\ud83d"}', "line 1: task '1': options holds half"),
        ('{"id": "' + "題" * 190 + '"}', "line 1: task '.*': its id has 570 bytes"),
        ("[" * 99999, "line 1: must be a JSON object"),
        ("[1]", "must be a JSON object"),
        ("", "contains no task"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        read_tasks(write(tmp_path, text))
    with pytest.raises(UserError, match="cannot be read"):
        read_tasks(str(tmp_path / "missing"))


HELD = """
answer Answer ANSWERS final_answer finalAnswer correct-answer target Target expected expected_output
expectedOutput label labels ground_truth groundTruth groundtruth gold gold_patch solution
canonical_solution reward_model tests test unit_tests test_cases test_list hidden_tests rubric
FAIL_TO_PASS PASS_TO_PASS patch test_patch oracle answers
""".split()
SEEN = """
id split question prompt problem_statement messages repo base_commit difficulty answer_format
target_language label_names test_command latest numbers context choices goal marigold attestation
""".split()


def test_a_field_that_holds_the_answer_is_known_by_its_name() -> None:
    assert [name for name in HELD if not holds_answer(name)] == []
    assert [name for name in SEEN if holds_answer(name)] == []
    task = dict.fromkeys((*HELD, *SEEN), 1)
    assert list(Hidden(None, graded=True).without(task)) == SEEN
    for names, graded in ((None, False), ([], True)):
        assert Hidden(names, graded=graded).without(task) == task


def test_an_answer_in_a_field_is_hidden_and_a_schema_is_whole() -> None:
    schema = {"properties": {"answer": {"type": "string"}}}
    task = {"extra_info": {"answer": 1, "index": 2}, "tool": {"schema": schema}}
    fields = Hidden(None, graded=True)
    assert fields.of(task) == ["extra_info.answer"]
    assert fields.without(task) == {"extra_info": {"index": 2}, "tool": {"schema": schema}}


def test_a_field_that_no_task_has_is_named(tmp_path: Path) -> None:
    rows = '{"id": 1, "split": "train", "q": "a"}\n{"id": 2, "split": "train", "hint": "b"}'
    tasks = read_tasks(write(tmp_path, rows)).tasks("train", 9)
    assert unknown_fields("python mine.py {q} {hint} ${HOME}", tasks) == ""
    assert unknown_fields("python mine.py {task} {q}", tasks) == (
        "env agent: command has {task}, which is no field of the tasks (hint, id, q, split), so "
        "the agent gets it as it stands there"
    )
    assert unknown_fields("python mine.py {task}", []) == ""
