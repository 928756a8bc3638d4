"""A regraded store: rewards of a corrected environment, the same attempts, a link to the old."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from learner.cli import main
from learner.offline import regrade as module
from r3l.codec import encode
from r3l.config import load
from r3l.errors import UserError
from r3l.records import Group, GroupPlan
from tests.buffer.fakes import Desk
from tests.r3l.rollout.fakes import TASK, explore, learner_of_advice

WORLDS = Path(__file__).with_name("corridors.py")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Four groups of two trained steps: a failure "axc" and its retry "abc" from door 1, with
    auxiliary samples, and one more that is unfinished."""
    desk = Desk(tmp_path / "store", max_staleness=9, algorithm={"name": "r3l", "group_size": 2})
    desk.add([replace(TASK, task_id=f"corridor/{i}") for i in range(3)])
    for _ in range(4):
        lease = desk.lease(plan=GroupPlan(1, 1))
        desk.put(lease.group_id, explore(learner_of_advice(), make_env=world("Corridor")))
    for step in (1, 2):
        desk.commit(desk.draw(2).draw_id, step)
    lease = desk.lease(version=2, plan=GroupPlan(2, 0))
    desk.put(lease.group_id, explore(learner_of_advice(), "algorithm=grpo")[:1])
    desk.store.close()
    return desk.folder


def world(name: str) -> Any:
    from tests.learner.offline import corridors

    return getattr(corridors, name)


def regrade(store: Path, out: Path, kind: str, *more: str) -> Any:
    command = ["regrade", str(store), "--out", str(out), "--env", f"{WORLDS}:{kind}", *more]
    return CliRunner().invoke(main, command)


def groups(folder: Path) -> list[Group]:
    opened = Store(folder, read_only=True)
    try:
        return [store_reads.group(opened, row["group"]) for row in store_reads.rows(opened)]
    finally:
        opened.close()


def sound(folder: Path) -> bool:
    opened = Store(folder, read_only=True)
    try:
        return verify(opened) == []
    finally:
        opened.close()


def test_the_same_environment_gives_the_same_store_but_for_the_link(
    store: Path, tmp_path: Path
) -> None:
    done = regrade(store, tmp_path / "new", "Corridor")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert (said["attempts"], said["changed"], said["diverged"]) == (9, 0, 0)
    assert [*map(encode, groups(tmp_path / "new"))] == [*map(encode, groups(store))]
    assert sound(tmp_path / "new")
    link = json.loads((tmp_path / "new" / "regraded.json").read_text())
    assert link["store"] == str(store.resolve()) and link["env"].endswith(":Corridor")
    assert (link["attempts"], link["changed"]) == (9, 0)


def test_a_lenient_verifier_changes_rewards_parts_and_last_reactions_alone(
    store: Path, tmp_path: Path
) -> None:
    done = regrade(store, tmp_path / "new", "Lenient")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert (said["changed"], said["successes_before"], said["successes"]) == (5, 4, 4)
    assert sound(tmp_path / "new") and not list(tmp_path.glob(".building-*"))
    for old, new in zip(groups(store), groups(tmp_path / "new"), strict=True):
        rewards = [pytest.approx(2 / 3), 1.0][: len(old.trajectories)]
        assert new.rewards.tolist() == rewards
        assert (new.state, new.times, len(new.results)) == (old.state, old.times, len(old.results))
        for before, after in zip(old.trajectories, new.trajectories, strict=True):
            assert after.token_ids.tolist() == before.token_ids.tolist()
            assert after.observations == (*before.observations[:-1], before.observations[-1] + "!")
            assert after.extra.reward_parts == {"right": 3.0 if before.role == "base" else 2.0}
    opened = Store(tmp_path / "new", read_only=True)
    rows = [row for row in store_reads.rows(opened) if row["done"] == 2]
    assert [row["contrast"] for row in rows] == [pytest.approx(1 / 3)] * 4
    opened.close()


def test_samples_of_a_correction_that_is_none_any_more_are_left_out(
    store: Path, tmp_path: Path
) -> None:
    assert any(one.aux for group in groups(store) for one in group.results)
    done = regrade(store, tmp_path / "new", "Strict")
    assert done.exit_code == 0, done.output
    said = json.loads(done.output)
    assert (said["successes"], said["aux_dropped"]) == (0, 8)
    assert not any(one.aux for group in groups(tmp_path / "new") for one in group.results)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("Renamed", "step 2: corridor: observation 2 differs on replay; nothing was written"),
        ("Longer", "step 2: corridor: it continues after the last step 2"),
        ("Shorter", "step 1: corridor: it ends at step 1, before the last step 2"),
        ("Nowhere", "defines no class 'Nowhere'"),
    ],
)
def test_a_world_that_does_not_replay_is_one_line_and_nothing_is_written(
    store: Path, tmp_path: Path, kind: str, rule: str
) -> None:
    done = regrade(store, tmp_path / "new", kind)
    assert done.exit_code == 2
    [line] = [x for x in done.output.splitlines() if x.startswith("r3l-learner: ")]
    assert rule in line and (kind == "Nowhere" or "group g000000000" in line)
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".building-*"))


def test_diverged_attempts_can_be_left_out_and_each_is_named(store: Path, tmp_path: Path) -> None:
    done = regrade(store, tmp_path / "new", "Renamed", "--drop-diverged")
    assert done.exit_code == 0, done.output
    lines = [x for x in done.output.splitlines() if x.startswith("left out: ")]
    assert len(lines) == 5 and all(", base 0, step 2: " in line for line in lines)
    assert sound(tmp_path / "new")
    for group in groups(tmp_path / "new"):
        base = next(one for one in group.results if one.role == "base")
        assert (base.status, base.cause) == ("failed", "replay_diverged")


@pytest.mark.parametrize("what", ["no store", "taken"])
def test_bad_folders_are_one_line(store: Path, tmp_path: Path, what: str) -> None:
    source = tmp_path / "nowhere" if what == "no store" else store
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_text("x" * (what == "taken"))
    done = regrade(source, tmp_path / "new", "Corridor")
    rule = "no store there" if what == "no store" else "is not empty"
    assert done.exit_code == 2 and rule in done.output.splitlines()[-1]


@pytest.mark.parametrize("env", ["agent", "verifiers:products"])
def test_an_agent_without_a_grader_cannot_be_regraded(tmp_path: Path, env: str) -> None:
    with pytest.raises(UserError, match=f"env {env}: cannot be regraded.*a grader"):
        module.regrade(tmp_path / "store", tmp_path / "new", load(None, [f"env={env}"]))
