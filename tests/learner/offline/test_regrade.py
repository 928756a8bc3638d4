"""A regraded store: rewards of a corrected environment, the same attempts, a link to the old."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.finished_copy import copy_finished
from buffer.tools.verify import verify
from learner.cli import main
from learner.offline import regrade as module
from r3l.codec import encode
from r3l.errors import UserError
from r3l.records import Group, GroupPlan
from r3l.run.config import load
from tests.buffer.fakes import Desk
from tests.r3l.rollout.fakes import TASK, explore, explored, learner_of_advice

WORLDS = Path(__file__).with_name("corridors.py")
JUDGEMENT = ("reward", "observations", "finish", "feedback", "faults", "extra")
"""The fields of an attempt that a regrade may change."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four groups of two trained steps: a failure "axc" and its retry "abc" from door 1, with its
    reflection; and one group that is unfinished."""
    folder = tmp_path_factory.mktemp("run") / "store"
    desk = Desk(folder, max_staleness=9, algorithm={"name": "r3l", "group_size": 2})
    desk.add([replace(TASK, task_id=f"corridor/{i}") for i in range(3)])
    for _ in range(4):
        lease = desk.lease(plan=GroupPlan(2))
        results, reflections = explored(learner_of_advice(), make_env=world("Corridor"))
        desk.put(lease.group_id, [*reflections.values(), *results])
    for step in (1, 2):
        desk.commit(desk.draw(2).draw_id, step)
    lease = desk.lease(version=2, plan=GroupPlan(2))
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
    with Store(folder, read_only=True) as opened:
        return [store_reads.group(opened, row["group"]) for row in store_reads.rows(opened)]


def sound(folder: Path) -> bool:
    with Store(folder, read_only=True) as opened:
        return verify(opened) == []


def last_line(done: Any) -> str:
    return str(done.output.splitlines()[-1])


def test_the_same_environment_gives_the_same_store_but_for_the_link(
    store: Path, tmp_path: Path
) -> None:
    done = regrade(store, tmp_path / "new", "Corridor")
    assert done.exit_code == 0, done.output
    assert last_line(done) == (
        "judged 9 attempts of 5 groups: 0 rewards changed; mean 0.4444 -> 0.4444; successes 4 -> 4"
    )
    assert [*map(encode, groups(tmp_path / "new"))] == [*map(encode, groups(store))]
    assert sound(tmp_path / "new") and sound(store)
    with Store(tmp_path / "new", read_only=True) as new:
        (link,) = store_reads.regrades(new)
    assert (link.store, link.env) == (str(store.resolve()), f"{WORLDS.name}:Corridor")
    assert (link.attempts, link.changed, link.left_out) == (9, 0, {})


def test_a_regrade_of_a_regraded_store_names_both_and_so_does_a_copy_to_train_on(
    store: Path, tmp_path: Path
) -> None:
    assert regrade(store, tmp_path / "one", "Lenient").exit_code == 0
    assert regrade(tmp_path / "one", tmp_path / "two", "Strict").exit_code == 0
    copy_finished([tmp_path / "two"], tmp_path / "copy", contrast=False, on_group=id)
    for folder in ("two", "copy"):
        with Store(tmp_path / folder, read_only=True) as new:
            assert [Path(link.store).name for link in store_reads.regrades(new)] == ["store", "one"]


def test_a_lenient_verifier_changes_the_judgement_alone(store: Path, tmp_path: Path) -> None:
    done = regrade(store, tmp_path / "new", "Lenient")
    assert done.exit_code == 0, done.output
    assert last_line(done) == (
        "judged 9 attempts of 5 groups: 5 rewards changed; mean 0.4444 -> 0.8148; successes 4 -> 4"
    )
    assert sound(tmp_path / "new") and not list(tmp_path.glob(".building-*"))
    for old, new in zip(groups(store), groups(tmp_path / "new"), strict=True):
        assert new.rewards.tolist() == [pytest.approx(2 / 3), 1.0][: len(old.trajectories)]
        assert encode(replace(new, results=())) == encode(replace(old, results=()))
        for before, after in zip(old.trajectories, new.trajectories, strict=True):
            judged = {name: getattr(after, name) for name in JUDGEMENT}
            assert encode(replace(before, **judged)) == encode(after)
            assert after.observations == (*before.observations[:-1], before.observations[-1] + "!")
            assert after.extra.reward_parts == {"right": 3.0 if before.role == "base" else 2.0}
            assert after.extra.scores == {"doors": 3.0}
            assert after.extra.step_rewards.tolist()[:2] == [0.0, 0.0]
            assert (after.extra.step_cut == before.extra.step_cut).all()
    with Store(tmp_path / "new", read_only=True) as opened:
        rows = [row for row in store_reads.rows(opened) if row["done"] == 2]
    assert [row["contrast"] for row in rows] == [pytest.approx(1 / 3)] * 4


def test_attempts_that_do_not_replay_fail_by_name_and_are_counted(
    store: Path, tmp_path: Path
) -> None:
    done = regrade(store, tmp_path / "new", "Renamed")
    assert done.exit_code == 1
    line, summary = done.output.splitlines()[-2:]
    assert line.startswith("left out 5 attempts: replay_diverged; the first is group g00000000")
    assert line.endswith("slot 0, step 2: corridor: observation 2 differs on replay")
    assert summary.startswith("judged 4 attempts of 5 groups: 0 rewards changed; mean 1 -> 1")
    assert sound(tmp_path / "new")
    for group in groups(tmp_path / "new"):
        base = next(one for one in group.results if one.role == "base")
        assert (base.status, base.cause, base.of) == ("failed", "replay_diverged", -1)
    with Store(tmp_path / "new", read_only=True) as new:
        assert store_reads.regrades(new)[0].left_out == {"replay_diverged": 5}


def test_an_environment_that_raises_on_some_attempts_costs_them_alone(
    store: Path, tmp_path: Path
) -> None:
    done = regrade(store, tmp_path / "new", "Broken")
    line, summary = done.output.splitlines()[-2:]
    assert done.exit_code == 1 and summary.startswith("judged 4 attempts of 5 groups")
    assert line.startswith("left out 5 attempts: environment_KeyError; the first is group g")
    assert "no such door" in line and "corridors.py:" in line


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("Longer", "replay_diverged; the first is group"),
        ("Longer", "step 2: corridor: it continues after the last step 2; nothing was written"),
        ("Shorter", "step 1: corridor: it ends at step 1, before the last step 2"),
        ("Endless", "9 attempts: record_RecordError"),
        ("Nowhere", "defines no class 'Nowhere'"),
    ],
)
def test_if_no_attempt_can_be_judged_it_is_one_line_and_nothing_is_written(
    store: Path, tmp_path: Path, kind: str, rule: str
) -> None:
    done = regrade(store, tmp_path / "new", kind)
    assert done.exit_code == 2
    [line] = [x for x in done.output.splitlines() if x.startswith("r3l-learner: ")]
    assert rule in line
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".building-*"))


def test_an_interrupt_leaves_nothing_behind(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "put_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        module.regrade(store, tmp_path / "new", load(None, [f"env={WORLDS}:Corridor"]))
    assert not (tmp_path / "new").exists() and not list(tmp_path.glob(".building-*"))


@pytest.mark.parametrize("what", ["no store", "taken"])
def test_bad_folders_are_one_line(store: Path, tmp_path: Path, what: str) -> None:
    source = tmp_path / "nowhere" if what == "no store" else store
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "file").write_text("x" * (what == "taken"))
    done = regrade(source, tmp_path / "new", "Corridor")
    rule = "no store there" if what == "no store" else "is not empty"
    assert done.exit_code == 2 and rule in done.output.splitlines()[-1]


def test_the_runs_own_settings_are_those_beside_the_store(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "buffer")
    (tmp_path / "config.yaml").write_text(f"env: {WORLDS}:Lenient\n")
    command = ["regrade", str(tmp_path), "--out", str(tmp_path / "new")]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0 and "5 rewards changed" in last_line(done)


@pytest.mark.parametrize("env", ["agent", "verifiers:products"])
def test_an_agent_without_a_grader_cannot_be_regraded(tmp_path: Path, env: str) -> None:
    with pytest.raises(UserError, match=f"env {env}: cannot be regraded.*a grader"):
        module.regrade(tmp_path / "store", tmp_path / "new", load(None, [f"env={env}"]))


def test_failures_are_counted_by_cause_and_by_the_error_that_a_grader_raised() -> None:
    tally = module.Tally("store")
    for number, what in enumerate(["KeyError: 'a'", "KeyError: 'b'", "ValueError: no"] * 2):
        error = module.failed("grader_failed", f"the grader failed: {what}")
        tally.failed(f"group g{number}, slot 0", error)
    assert tally.failures() == [
        "left out 4 attempts: grader_failed (KeyError); the first is group g0, slot 0: the grader "
        "failed: KeyError: 'a'",
        "left out 2 attempts: grader_failed (ValueError); the first is group g2, slot 0: the "
        "grader failed: ValueError: no",
    ]
    for number in range(20):
        tally.failed("group g9", module.failed(f"cause_{number}", "no"))
    assert tally.failures()[-1] == "left out attempts for 2 more kinds of reasons"
    assert json.dumps(tally.causes)
