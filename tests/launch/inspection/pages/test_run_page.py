"""A run as a page."""

from dataclasses import replace
from pathlib import Path

from launch.inspection.pages.run_data import RunData, read_run
from launch.inspection.pages.run_page import not_measured, run_page, summary
from learner.evaluation.evaluator import Evaluation, keep_evaluation
from learner.evaluation.metrics import report
from r3l.run.config import RunConfig
from r3l.run.files.progress_lines import History
from r3l.run.files.run_folder import RunFolder
from tests.launch.inspection.conftest import step
from tests.launch.inspection.pages.html import read
from tests.launch.inspection.pages.test_run_data import played
from tests.r3l.files.made import evaluation


def text(data, **more):
    return read(run_page(data, **({"alive": False, "wrong": []} | more))).text


def test_a_page_says_what_was_trained_on_what_and_what_came_out(ended):
    RunFolder(ended).write_versions({"r3l": "1.0", "torch": "2"})
    RunFolder(ended).add_machine(0, {"processor": "fast <one>", "ranks": "1"})
    shown = text(read_run(RunFolder(ended)), wrong=[("it is <slow>", "raise x")])
    for words in (
        "4 of 60 steps; the run is unfinished.", "0.25 (no interval) at step 0", "builtin", "r3l",
        "workshop", "40, of 4 tasks", "processor fast <one>", "torch 2", "Success on held-out",
        "door/0000: ", "policy 0", "root cause", "step 1 spoils", "30.0 s", "differs from the",
        "it is <slow> → raise x", "the run's last 56 steps", "other seeds",
    ):  # fmt: skip
        assert words in shown, words
    assert "is still running" not in shown
    assert "the run is still running" in text(read_run(RunFolder(ended)), alive=True)


def test_evaluations_show_texts_before_and_after_and_the_difference_task_by_task(ended):
    for version, attempts in ((0, played(0.0, 1.0)), (4, played(1.0, 1.0))):
        keep_evaluation(ended, RunConfig(), Evaluation(version, attempts, report(attempts)))
    shown = text(read_run(RunFolder(ended)))
    assert "1 tasks better, 0 worse, 1 the same; mean +0.5 [" in shown
    assert "t00: reward +1" in shown and "t01: the same reward" in shown
    assert "step 0: reward 0" in shown and "step 4: reward 1" in shown


def test_a_run_without_a_step_evaluation_or_store_says_what_is_not_measured(tmp_path):
    (tmp_path / "config.yaml").write_text("algorithm: grpo\n")
    shown = text(read_run(RunFolder(tmp_path)))
    assert shown.count("not measured: ") >= 5
    for words in ("no evaluation", "no step was trained", "no task was played", "no retry"):
        assert words in shown


def test_numbers_that_are_not_finite_leave_gaps(ended):
    data = read_run(RunFolder(ended))
    bad = [step(n, **{"learner/loss": float(v)}) for n, v in enumerate(("nan", "inf", "1", "2"))]
    lines = [evaluation(0, float("nan")), evaluation(4, 0.5, success_low=float("nan"))]
    data.history = History(bad, lines)
    page = run_page(data, alive=False, wrong=[])
    assert '="nan' not in page.decode() and '"nan ' not in page.decode()
    assert "Loss" in read(page).text


def test_a_part_that_cannot_be_shown_is_named_and_the_rest_is_shown(ended):
    data = read_run(RunFolder(ended))
    data.stored = replace(data.stored, rows=[{"task": "t"}])
    shown = text(data)
    assert "not readable: Retries: " in shown and "Success in training" in shown


def test_the_summary_is_a_sentence():
    data = RunData(RunFolder(Path("x")))
    assert summary(data, False) == "0 steps. Success on held-out tasks: not measured."
    data.history = History([step(3)], [evaluation(3, 0.5, success_low=0.25, success_high=0.75)])
    assert summary(data, True).startswith("3 steps; the run is still running. Success on 8 ")
    assert "0.5 [0.25, 0.75]" in summary(data, False)
    data.history = History([], [], damaged=3)
    assert "3 damaged lines of progress.jsonl, which are left out" in not_measured(data, False)
