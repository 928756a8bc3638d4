"""An evaluation as a page."""

from launch.inspection.pages.evaluation_page import SIDES, EvaluationData, evaluation_page
from learner.evaluation.metrics import compare, report
from tests.launch.inspection.pages.html import read
from tests.learner.evaluation.fakes import attempted, turn

SETTINGS = {"model": "/m/<b>small", "weights": "step 3", "split": "eval", "seed": 1,
            "env": {"name": "keys", "others": {"door": {}}}, "temperature": 0.4}  # fmt: skip


def attempts(*rewards):
    return [
        attempted(f"t{n}", reward=r, steps=(turn("<i>sees", f"says {n}", 3),), length=9)
        for n, r in enumerate(rewards)
    ]


def test_an_evaluation_alone_shows_figures_and_its_worst_and_best_attempts():
    played = attempts(*(n / 10 for n in range(10)), 1.0)
    found = EvaluationData({"": report(played)}, played, SETTINGS, panel="panel: <keys>")
    shown = read(evaluation_page(found)).text
    for words in ("<b>small, step 3", "keys + door", "panel: <keys>", "<i>sees", "95 %"):
        assert words in shown
    assert "a difference: no other evaluation" in shown and "was played once" in shown
    assert shown.count("says ") == SIDES and "says 10" in shown and "says 0" in shown


def test_two_evaluations_are_beside_each_other():
    now, before = attempts(1.0, 0.0, 0.0), attempts(0.0, 1.0, 0.0)
    more = {"others": before, "other_settings": {"model": "/m/other"},
            "compared": compare(now, before)}  # fmt: skip
    reports = {"": report(now), "temperature 0": report(now)}
    shown = read(evaluation_page(EvaluationData(reports, now, SETTINGS, **more))).text
    for words in ("/m/other", "t0: reward +1", "t1: reward -1", "t2: the same", "temperature 0"):
        assert words in shown
    assert "--against" not in shown


def test_settings_of_an_old_or_strange_evaluation_are_shown_as_far_as_they_go():
    failed = [attempted("t", cause="<x>")]
    for settings in ({}, {"env": 3, "panel": 4}, {"not_comparable": "other <tasks>"}):
        shown = read(evaluation_page(EvaluationData({"": report(failed)}, failed, settings))).text
        assert "not recorded" in shown and "<x> 1" in shown
    assert "other <tasks>" in shown
