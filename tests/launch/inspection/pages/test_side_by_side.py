"""Attempts beside each other."""

from dataclasses import replace

from launch.inspection.pages.markup import page
from launch.inspection.pages.run_data import BeforeAndAfter
from launch.inspection.pages.side_by_side import TURNS, before_and_after, retry, side
from r3l.views.attempt_view import Pair, ReflectionView
from tests.launch.inspection.pages.html import read
from tests.learner.evaluation.fakes import attempted, turn

SAID = attempted("t", reward=0.5, steps=(turn("a <door>", "open </div>", 3),), last="")


def text(part):
    return read(page("t", part)).text


def test_an_attempt_shows_its_turns_and_no_empty_observation_after_the_last():
    shown = side(SAID, "step 0")
    assert shown.count('class="text') == 2
    assert all(words in text(shown) for words in ("step 0: reward 0.5", "a <door>", "open </div>"))


def test_a_long_attempt_is_cut_in_its_middle_and_says_so():
    steps = tuple(turn(f"sees {n}.", f"does {n}.", 1) for n in range(TURNS + 5))
    shown = text(side(attempted("t", steps=steps), "now"))
    assert "5 turns are left out" in shown and "does 0." in shown and "does 12." in shown
    assert "does 6." not in shown and shown.count("does ") == TURNS


def test_a_failed_attempt_shows_its_cause_and_faults():
    failed = attempted("t", cause="env_error", faults=("slow",), cut=2, feedback="no")
    shown = text(side(failed, "now"))
    for words in ("no reward", "fault slow", "failed: env_error", "2 responses", "no response"):
        assert words in shown


def test_a_task_shows_how_its_reward_changed():
    gained = BeforeAndAfter("t", attempted("t"), SAID, ("a", "b"))
    assert "t: reward +0.5" in text(before_and_after(gained))
    assert "the same reward" in text(before_and_after(replace(gained, before=SAID)))


def test_a_retry_shows_what_was_said_of_the_attempt():
    thought = ReflectionView('{"x": "<b>"}', "", {"root_cause": "<b>"}, 9, 0, 0.1)
    shown = text(retry("t", Pair(0, attempted("t"), thought, SAID)))
    assert "root cause" in shown and "<b>" in shown and "reward +0.5" in shown
    plain = ReflectionView("no json", "bad_json", {}, 9, 0, 0.1)
    assert "no json" in text(retry("t", Pair(0, None, plain, None)))
