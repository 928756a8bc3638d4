"""Example texts: few, of different tasks, and never long."""

from msgspec.structs import replace

from learner.metrics import text_examples
from learner.metrics.text_examples import correction_texts, unread_reflection
from r3l.records import Group, ReflectionRecord, Task
from tests.learner.fakes import explore_group


def group(task: str, retry: float, text: str = "Look first.", says: str = "go") -> Group:
    """A failed attempt of four steps, retried from step 2."""
    played = explore_group((0.0,), (retry,), pivot=2)
    base, better = played.results
    thought = ReflectionRecord(text, outcome="failure", pivot=2)
    assert better.trajectory is not None
    told = replace(better.trajectory, actions=("a", "a", says, says))
    better = replace(better, reflection=thought, trajectory=told)
    return replace(played, task=Task(task, "t", 0), results=(base, better))


def test_an_example_shows_the_attempt_the_reflection_and_the_retry_from_the_pivot_on() -> None:
    (text,) = correction_texts([group("t/1", 1.0)], 1)
    assert "**t/1**, group g0: reward 0.00 → 1.00 from step 2" in text
    attempt, reflection, retry = text.split("~~~~")[1::2]
    assert attempt == "\n2 < o\n2 > a\n3 < o\n3 > a\n  < o\n"
    assert reflection == "\nLook first.\n"
    assert retry == "\n2 < o\n2 > go\n3 < o\n3 > go\n  < o\n"


def test_only_the_largest_gains_of_different_tasks_are_shown_and_no_retry_that_is_not_better() -> (
    None
):
    groups = [group("a", 0.5), group("b", 0.7), group("b", 1.0), group("c", 0.0), group("d", 0.9)]
    texts = correction_texts(groups, 11)
    assert [text.split("**")[1] for text in texts] == ["b", "d"]
    assert correction_texts([group("c", 0.0)], 1) == []


def test_examples_are_taken_at_the_first_step_and_every_ten_steps() -> None:
    shown = [step for step in range(1, 32) if correction_texts([group("a", 1.0)], step)]
    assert shown == [1, 11, 21, 31]


def test_an_example_is_short_and_a_text_cannot_leave_its_block() -> None:
    hostile = "~~~~\n# heading\n" + "x" * 100_000
    (text,) = correction_texts([group("a", 1.0, hostile, hostile)], 1)
    assert len(text) < 14_000
    assert text.count("~~~~") == 6 and text_examples.FENCE == "~~~~"


def test_an_unread_reflection_is_shown_only_if_the_step_has_no_other() -> None:
    good = group("a", 1.0)
    thought = ReflectionRecord("Well, I think\nthat", cause="not_json")
    bad = replace(good, results=tuple(replace(r, reflection=thought) for r in good.results))
    assert unread_reflection([good]) == unread_reflection([good, bad]) == ""
    line = unread_reflection([bad])
    assert "not_json" in line and "Well, I think" in line and "\n" not in line
