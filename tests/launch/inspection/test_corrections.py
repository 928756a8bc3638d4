"""The most instructive corrections."""

import json

import numpy as np
import pytest

from buffer.storage.store import Store
from buffer.tools import offline
from buffer.viewer.attempts import Texts
from launch.inspection import corrections
from r3l.algorithms.r3l import R3LConfig
from r3l.records import Group, GroupPlan, ReflectionRecord, SlotResult, Task
from tests.buffer.viewer.stores import Made, attempt

MADE = Made(steps=4)


def corrected(group_id, task, base, retry, pivot):
    """A group of one base attempt and its retry."""
    advice = json.dumps({"improvement_suggestion": f"mind step {pivot}"})
    return Group(
        group_id, Task(task, "doors", 0), GroupPlan(1, 1), "trained",
        (
            SlotResult("base", 0, "done", trajectory=attempt("base", 0, MADE, reward=base)),
            SlotResult(
                "distilled", 0, "done",
                trajectory=attempt("distilled", 0, MADE, reward=retry, pivot=pivot),
                reflection=ReflectionRecord(advice, "", "failure", pivot),
            ),
        ),
    )  # fmt: skip


@pytest.fixture
def ranked(monkeypatch):
    """The groups of the best corrections of these groups."""

    def best(*groups, count=10):
        known = {group.group_id: group for group in groups}
        monkeypatch.setattr(offline, "group", lambda store, group_id: known[group_id])
        rows = [
            {"group": g.group_id, "purpose": g.purpose, "contrast": float(np.ptp(g.rewards))}
            for g in groups
        ]
        return [one.group_id for one in corrections.best(None, rows, count)]

    return best


def test_the_largest_gain_comes_first_then_the_latest_pivot(ranked):
    found = ranked(
        corrected("g1", "a", 0.0, 1.0, 0),
        corrected("g2", "b", 0.0, 1.0, 3),
        corrected("g3", "c", 0.5, 1.0, 3),
        corrected("g4", "d", 1.0, 0.0, 1),  # worse
    )
    assert found == ["g2", "g1", "g3"]


def test_a_task_comes_once_with_its_best_correction(ranked):
    groups = [corrected("g1", "a", 0, 1, 2), corrected("g2", "a", 0, 1, 3),
              corrected("g3", "a", 0, 1, 1), corrected("g4", "b", 0, 1, 0)]  # fmt: skip
    assert ranked(*groups) == ["g2", "g4"] and ranked(*groups, count=1) == ["g2"]


def test_a_correction_of_a_store_is_shown_alone_and_in_words(ended):
    store = Store(ended / "buffer", read_only=True)
    found = corrections.best(store, list(offline.rows(store)))
    assert len(found) == 4 and found[0].result == "reward 0.00 → 1.00 from step 1"
    shown = corrections.shown(store, found[0], R3LConfig().build(), Texts(None))
    assert [pair["retry"]["slot"] for pair in shown["pairs"]] == [0]
    store.close()


def test_advice_is_the_reflections_suggestion_or_its_beginning():
    assert corrections._advice('{"improvement_suggestion": "look first"}') == "look first"
    assert corrections._advice('{"improvement_suggestion": null}').startswith("{")
    assert corrections._advice("I was wrong. " * 100) == ("I was wrong. " * 100)[:200]
    assert corrections._advice("[1]") == "[1]"
