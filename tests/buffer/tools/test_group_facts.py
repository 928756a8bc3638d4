"""The facts of a group, and filters over them: what is accepted, what is refused and how."""

from pathlib import Path

import pytest

from buffer.tools import store_reads
from buffer.tools.group_facts import NAMES, parse_filter
from r3l.errors import UserError
from r3l.records import GroupPlan, SlotResult
from tests.buffer.fakes import finished

ROW = {"reward": 0.7, "env": "workshop", "step": 3}


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("reward > 0.5 and env == 'workshop'", True),
        ("not reward > 0.5", False),
        ("0 < reward <= 0.7 or step == -1", True),
        ("env in ['a', 'b']", False),
        ("step not in (1, 2)", True),
        ("0 < step < 2", False),
        ("5 > step > reward > 0.5", True),
    ],
)
def test_a_filter_accepts_the_rows_it_describes(text, accepted):
    assert parse_filter(text)(ROW) is accepted


@pytest.mark.parametrize(
    "text",
    [
        "reward >",
        "",
        "colour == 1",
        "__import__('os')",
        "reward.real > 0",
        "reward + 1 > 0",
        "[x for x in env]",
        "lambda: 1",
        "env is 'workshop'",
        "reward > 'a'",
        "-env == 1",
        "(" * 500,
        "not " * 2000 + "reward",
        "not " * 20_000 + "reward",
    ],
)
def test_an_unknown_or_unsafe_filter_is_refused(text):
    with pytest.raises(UserError, match="filter"):
        parse_filter(text)(ROW)


def test_a_refusal_shows_an_example_of_a_filter():
    with pytest.raises(UserError, match=r"unknown name 'colour'.* actor"):
        parse_filter("colour == 1")
    with pytest.raises(UserError, match=r"invalid syntax.* reward > 0.5"):
        parse_filter("reward = 0.5")


def test_a_number_is_not_compared_with_a_text():
    with pytest.raises(UserError, match=r"different types.*and 'float'"):
        parse_filter("env > 0.5")(ROW)


def test_every_row_has_the_names_filters_may_use(trained):
    assert all(row.keys() == NAMES for row in store_reads.rows(trained.store))


def test_a_group_without_a_trajectory_has_no_reward_and_passes_no_comparison_of_rewards(trained):
    rows = list(store_reads.rows(trained.store))
    assert [row["reward"] for row in rows] == [1.0, 1.0, None, 0.0]
    assert rows[2]["mean_reward"] is rows[2]["min_reward"] is None

    def found(text):
        accepts = parse_filter(text)
        return [number for number, row in enumerate(rows) if accepts(row)]

    assert found("reward < 0.5") == found("0 <= mean_reward < 1") == [3]
    assert found("not reward >= 0") == found("done == 0") == [2]


def test_the_gain_of_a_group_is_that_of_its_best_retry_of_a_played_attempt(desk, tasks):
    desk.add(tasks(9))
    group = desk.lease(plan=GroupPlan(6)).group_id
    desk.put(group, [finished(4, reward=0.5), finished(1, of=4, reward=0.75)])
    desk.put(group, [finished(0, of=4, reward=0.25), finished(3, of=1, reward=1.5)])
    desk.put(group, [finished(2, of=5, reward=9.0), SlotResult(5, "failed", cause="env")])
    plain = desk.complete(rewards=(0.0, 1.0))
    gains = {row["group"]: row["gain"] for row in store_reads.rows(desk.store)}
    assert gains == {group: 0.75, plain: None}


def test_filters_and_samplers_call_every_fact_by_one_name(desk, tasks):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(3)).group_id
    desk.put(group, [finished(), finished(1, of=0, reward=0.5)])
    row = desk.row(group)
    facts = next(iter(store_reads.rows(desk.store)))
    assert facts == {name: getattr(row, name) for name in NAMES}
    assert (row.reward, row.min_reward, row.gain, row.mean_reward) == (0.5, 0.0, 0.5, 0.25)
    assert (row.resolved, row.resolved_slots, row.env, row.step, row.uses) == (
        2, (0, 1), "workshop", -1, 0,
    )  # fmt: skip


def test_the_page_on_the_buffer_names_every_fact():
    page = Path("docs/buffer.md").read_text(encoding="utf-8").partition("A filter of `ls`")[2]
    assert [name for name in NAMES if f"`{name}`" not in page] == []
