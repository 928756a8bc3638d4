"""Looking into a store without its service, while it serves."""

import json

import pytest
from click.testing import CliRunner

from buffer import cli
from buffer.groups.samplers import SAMPLERS
from buffer.storage.store import Store
from buffer.tools import filter, offline
from buffer.tools.verify import verify
from r3l.errors import NotFound, UserError
from r3l.records import GroupPlan, SlotResult
from tests.buffer.conftest import Desk, _done

ROW = {"reward": 0.7, "env": "workshop", "step": 3}
NAMES = frozenset(ROW)


@pytest.fixture
def filled(desk, tasks, done):
    """A store with a trained step, a group without trajectories and an unfinished one."""
    desk.add(tasks(9))
    for _ in range(2):
        desk.put(desk.lease().group_id, done(reward=1.0))
    desk.commit(desk.draw(2).draw_id, 1)
    failed = desk.lease(version=1).group_id
    desk.put(failed, SlotResult("base", 0, "failed", cause="env"))
    desk.put(desk.lease(version=1, plan=GroupPlan(2)).group_id, done(version=1))
    return desk


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
def test_a_filter_says_what_it_says(text, accepted):
    assert filter.parse(text, NAMES)(ROW) is accepted


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
def test_a_filter_that_is_not_understood_is_refused(text):
    with pytest.raises(UserError, match="query"):
        filter.parse(text, NAMES)(ROW)


def test_who_types_something_else_is_told_what_a_filter_is_like():
    with pytest.raises(UserError, match=r"invalid syntax.* like reward > 0.5 and env =="):
        filter.parse("reward = 0.5", NAMES)


def test_a_step_is_replayed_exactly(filled):
    assert [g.group_id for g in offline.replay(filled.store, 1)[0]] == [
        "g0000000001",
        "g0000000002",
    ]
    with pytest.raises(NotFound, match="step 2"):
        offline.replay(filled.store, 2)


def test_a_sound_store_verifies_clean_and_a_tampered_one_does_not(filled):
    assert verify(filled.store) == []
    with filled.store.write() as txn:
        txn.delete("ledger", (1).to_bytes(8, "big"))
        txn.put("group", b"g0000000003", b"junk")
    problems = "\n".join(verify(filled.store))
    assert "g0000000001: in -1 more steps of the ledger" in problems and "g0000000003" in problems


def test_every_row_has_the_names_filters_may_use(filled):
    assert all(row.keys() == offline.ROW_NAMES for row in offline.rows(filled.store))


def test_a_group_without_a_trajectory_has_no_reward_and_passes_no_comparison_of_rewards(filled):
    rows = list(offline.rows(filled.store))
    assert [row["reward"] for row in rows] == [1.0, 1.0, None, 0.0]
    assert rows[2]["mean_reward"] is rows[2]["min_reward"] is None

    def found(text):
        accepts = filter.parse(text, offline.ROW_NAMES)
        return [number for number, row in enumerate(rows) if accepts(row)]

    assert found("reward < 0.5") == found("0 <= mean_reward < 1") == [3]
    assert found("reward == None") == [2] and found("reward != None") == [0, 1, 3]


def test_a_notebook_reads_a_snapshot(filled, tmp_path):
    filled.store.copy(tmp_path / "snapshot")
    store = Store(str(tmp_path / "snapshot"), read_only=True)
    assert [row["group"] for row in offline.rows(store) if row["reward"] == 1.0] == [
        "g0000000001",
        "g0000000002",
    ]
    groups, gone = offline.replay(store, 1)
    assert [list(group.rewards) for group in groups] == [[1.0], [1.0]] and gone == []
    assert offline.weights(store, 1) == {"g0000000001": 1.0, "g0000000002": 1.0}
    store.close()


def test_the_commands_read_a_snapshot(filled, tmp_path):
    filled.store.copy(tmp_path / "snapshot")
    at = ["--store", str(tmp_path / "snapshot")]

    def run(*arguments):
        result = CliRunner().invoke(cli.commands, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    assert "4 groups" in run("ls", *at) and "no reward" in run("query", *at, "reward == None")
    assert "2 groups" in run("query", *at, "state == 'trained' and reward == 1")
    assert "base 0: done" in run("show", *at, "g0000000001")
    assert json.loads(run("replay", *at, "1").splitlines()[0])["group_id"] == "g0000000001"
    assert run("verify", *at) == "clean\n"
    assert json.loads(run("stats", *at))["groups"]["train/trained"] == 2
    assert json.loads(run("stats", *at))["slot_drops"] == {"base/env": 1}
    run("compact", *at, str(tmp_path / "smaller"))
    copied = Store(tmp_path / "smaller", read_only=True)
    assert verify(copied) == []
    copied.close()


def test_a_store_can_be_listed_beside_the_service_that_owns_it(serve, tasks, tmp_path):
    from buffer import BufferClient

    served = serve()
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        client.lease("a", 0, GroupPlan(1))
        store = Store(served.folder, read_only=True)
        assert [row["state"] for row in offline.rows(store)] == ["leased"]
        store.close()


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_snapshot_gives_the_batches_that_the_store_would_have(make_desk, tasks, tmp_path, name):
    desk = make_desk(groups_per_step=9, sampler={"name": name, "reuse": 3, "beta": 0.5}, seed=7)
    desk.add(tasks(9))
    for reward in range(9):
        lease = desk.lease(plan=GroupPlan(2))
        desk.put(lease.group_id, [_done("base", 0), _done("base", 1, reward=float(reward))])
    desk.commit(desk.draw(4).draw_id, 1)
    desk.store.copy(tmp_path / "snapshot")
    copied = Desk(tmp_path / "snapshot", **desk.settings)
    copied.rids = desk.rids
    for step in (2, 3, 4):
        ours, theirs = desk.draw(4, 1), copied.draw(4, 1)
        assert ours == theirs and len(ours.groups) == 4
        desk.commit(ours.draw_id, step, 1)
        copied.commit(theirs.draw_id, step, 1)
    assert verify(copied.store) == []
    copied.store.close()
