"""An evaluation's folder in the viewer: its tasks are groups."""

import json

import pytest
from msgspec import to_builtins

from buffer.tools import group_facts
from buffer.viewer.evaluation_catalogue import RESULTS, EvaluationCatalogue
from buffer.viewer.web_server import Viewed
from learner.evaluation import evaluation_folder
from r3l.run.files import json_lines
from tests.learner.evaluation.fakes import attempted


@pytest.fixture
def asked(evaluation, show):
    """A viewer of `evaluation`."""
    return show(Viewed("mine", EvaluationCatalogue(evaluation)))


def test_an_evaluation_is_summed_up(asked):
    status, run = asked.api("run")
    assert status == 200 and run["states"] == {"eval": {"complete": 2}}
    assert (run["kind"], run["title"], run["notice"]) == ("evaluation", "mine", "")
    assert (run["total"], run["listed"], run["version"]) == (2, 2, 40)
    assert evaluation_folder.RESULTS == RESULTS


def test_tasks_are_listed_as_groups_the_last_one_first(asked):
    found = asked.api("groups")[1]["groups"]
    assert [one["task"] for one in found] == ["door/0", "door/1"]
    assert set(found[0]) == group_facts.NAMES | {"rewards", "times"}
    assert (found[0]["rewards"], found[0]["mean_reward"]) == ([1.0, 0.5], 0.75)
    before = asked.api("groups", before=found[0]["group"])[1]["groups"]
    assert [one["task"] for one in before] == ["door/1"]
    lines = asked.api("tasks", order="lowest")[1]["tasks"]
    assert [(one["task"], one["mean"]) for one in lines] == [("door/1", 0.125), ("door/0", 0.75)]


def test_a_group_has_the_attempts_at_its_task_in_their_order(asked):
    [found] = asked.api("groups", task="door/0", env="doors")[1]["groups"]
    status, one = asked.api("group", id=found["group"])
    assert status == 200 and [pair["slot"] for pair in one["pairs"]] == [0, 1]
    base = one["pairs"][1]["base"]
    assert (base["reward"], base["last"], base["seconds"]) == (0.5, "it is over", None)
    said = [(step["observation"], step["action"], step["length"]) for step in base["steps"]]
    assert said == [("a door", "open it", 5), ("a hall", "walk on", 7)]
    assert one["pairs"][1]["retry"] is None and base["steps"][0]["logprobs"] == []
    assert asked.api("group", id="g9")[0] == 404


def test_a_failed_attempt_earns_nothing_and_has_its_cause(asked):
    [found] = asked.api("groups", filter="done < resolved")[1]["groups"]
    assert (found["task"], found["cause"]) == ("door/1", "environment_hang")
    assert (found["rewards"], found["done"], found["resolved"]) == ([0.0, 0.25], 1, 2)
    failed = asked.api("group", id=found["group"])[1]["pairs"][0]["base"]
    assert (failed["status"], failed["reward"], failed["steps"]) == ("failed", None, None)


def test_filters_are_those_of_groups(asked):
    for text, tasks in (
        ("mean_reward > 0.5 and env == 'doors'", ["door/0"]),
        ("cause == 'environment_hang'", ["door/1"]),
        ("gain > 0 or purpose == 'train'", []),
    ):
        found = asked.api("groups", filter=text)[1]["groups"]
        assert [one["task"] for one in found] == tasks, text


def test_an_evaluation_that_goes_on_is_read_again(asked, evaluation):
    before = asked.api("run")[1]["change"]
    again = attempted("door/1", 0, "doors", 1.0)  # the failed attempt, played again
    for one in (again, attempted("door/2", 0, "doors")):
        json_lines.append(evaluation / RESULTS, to_builtins(one))
    asked.viewer.catalogue._next = 0.0
    run = asked.api("run")[1]
    assert run["change"] != before and run["total"] == 3
    found = asked.api("groups")[1]["groups"]
    assert [one["group"] for one in found] == ["g000003", "g000002", "g000001"]
    assert (found[2]["task"], found[2]["rewards"], found[2]["cause"]) == ("door/1", [1.0, 0.25], "")


def test_an_evaluation_that_changes_all_the_time_is_not_read_all_the_time(evaluation):
    seen = EvaluationCatalogue(evaluation)
    listed = seen.read()
    seen._next += 3600.0
    json_lines.append(evaluation / RESULTS, to_builtins(attempted("door/2")))
    assert seen.read() is listed


def test_damaged_lines_are_left_out(evaluation):
    with (evaluation / RESULTS).open("a") as file:
        file.write(json.dumps({"task_id": "door/3"}) + "\n{")
    assert len(EvaluationCatalogue(evaluation).read()) == 2


def test_an_evaluation_that_was_moved_away_is_said(asked, evaluation):
    evaluation.rename(evaluation.with_name("away"))
    status, body = asked.api("run")
    assert status == 400 and "was moved or deleted" in body["error"]
