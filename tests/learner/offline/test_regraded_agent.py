"""Stored attempts of an agent get the rewards of another grader, which sees their calls."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from envs.registry import tasks_of_all
from learner.offline.regrade import Tally, regrade
from r3l.codec import encode
from r3l.config import RunConfig, load
from r3l.errors import UserError
from r3l.records import GroupPlan, SlotResult
from r3l.views.tape import read_tape, write_tape
from tests.actors.agents.test_agent_attempt import config_of, play
from tests.actors.agents.test_tape_reader import answers, explored
from tests.actors.agents.test_tape_reader import config_of as walker
from tests.buffer.fakes import Desk
from tests.learner.offline.test_regrade import groups, sound
from tests.r3l.fakes import ScriptedPolicy

pytestmark = pytest.mark.system

GRADERS = """
import os, time
def first(task, calls):
    right = calls[-1]["reply"]["content"] == task["answer"]
    return {"reward": float(right), "parts": {"calls": len(calls)}, "feedback": "as before"}

def second(task, calls):
    return {"reward": 0.5, "feedback": calls[0]["messages"][-1]["content"]}

def in_folder(task, calls, folder):
    return 1.0

def broken(task, calls):
    raise KeyError("no such field")

def went_right(task, calls):
    return sum(call["reply"]["content"] == "right" for call in calls) / len(calls)

def gives_up(task, calls):
    return {"failed": "the judge is away"}

def hangs(task, calls):
    time.sleep(600)

def looks_around(task, calls):
    return {"reward": 0.0, "feedback": f"{os.listdir()} {os.environ.get('JUDGE_KEY')}"}
"""


def graded_by(folder: Path, name: str, *more: str, **options: str) -> RunConfig:
    (folder / "graders.py").write_text(GRADERS)
    return config_of(folder, "", *more, reward=f"{folder / 'graders.py'}:{name}", **options)


def played(folder: Path) -> list[SlotResult]:
    results, _ = play(graded_by(folder, "first"), attempts=2)
    assert [result.trajectory.reward for result in results if result.trajectory] == [1.0, 1.0]
    return results


def stored(folder: Path, results: list[SlotResult]) -> Path:
    desk = Desk(folder / "store", max_staleness=9, algorithm={"name": "grpo", "group_size": 2})
    desk.add(tasks_of_all(graded_by(folder, "first").env, "train", 1))
    lease = desk.lease(plan=GroupPlan(2, 0))
    desk.put(lease.group_id, results)
    desk.commit(desk.draw(1).draw_id, 1)
    desk.store.close()
    return desk.folder


def test_the_same_grader_changes_nothing_and_another_one_rewards_parts_and_feedback(
    tmp_path: Path,
) -> None:
    store = stored(tmp_path, played(tmp_path))
    tally = regrade(store, tmp_path / "same", graded_by(tmp_path, "first"))
    assert tally == Tally(groups=1, attempts=2, successes_before=2, successes=2)
    assert [*map(encode, groups(tmp_path / "same"))] == [*map(encode, groups(store))]

    tally = regrade(store, tmp_path / "other", graded_by(tmp_path, "second"))
    assert tally == Tally(groups=1, attempts=2, changed=2, successes_before=2)
    (group,) = groups(tmp_path / "other")
    for attempt in group.trajectories:
        assert (attempt.reward, attempt.feedback, attempt.observations[-1]) == (0.5, "q", "q")
        assert attempt.extra.reward_parts == {} and attempt.extra.tape
    assert sound(tmp_path / "other")


def test_a_retry_is_graded_by_all_of_its_calls_those_from_the_tape_too(tmp_path: Path) -> None:
    config = walker(tmp_path, "", 4, "algorithm=r3l", "algorithm.group_size=2")
    ((base, retry),), *_ = explored(config, ScriptedPolicy(answers(2)))
    desk = Desk(tmp_path / "store", max_staleness=9, algorithm={"name": "r3l", "group_size": 2})
    desk.add(tasks_of_all(config.env, "train", 1))
    desk.put(desk.lease(plan=GroupPlan(1, 1)).group_id, [base, retry])
    desk.store.close()
    (tmp_path / "graders.py").write_text(GRADERS)
    options = {**config.env.options, "reward": f"{tmp_path / 'graders.py'}:went_right"}
    regrade(
        desk.folder,
        tmp_path / "new",
        load(None, ["env=agent", f"env.options={json.dumps(options)}"]),
    )
    (group,) = groups(tmp_path / "new")
    assert [(each.role, each.reward) for each in group.trajectories] == [
        ("base", 0.0), ("distilled", 0.5)]  # fmt: skip


@pytest.mark.parametrize(
    ("grader", "why"),
    [
        ("in_folder", "argument.*'folder'"),
        ("broken", "no such field"),
        ("hangs", "it took too long"),
    ],
)
def test_a_grader_that_fails_or_needs_the_folder_is_one_line_and_nothing_is_written(
    tmp_path: Path, grader: str, why: str
) -> None:
    store = stored(tmp_path, played(tmp_path))
    line = f"the grader failed.*{why}.*nothing was written"
    with pytest.raises(UserError, match=line) as refused:
        regrade(store, tmp_path / "new", graded_by(tmp_path, grader, "actor.agent.timeout_s=2"))
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()


def test_an_attempt_whose_messages_were_too_long_is_one_line(tmp_path: Path) -> None:
    cut = []
    for result in played(tmp_path):
        made = result.trajectory
        assert made is not None
        calls = [replace(call, messages=()) for call in read_tape(made.extra.tape)]
        extra = replace(made.extra, tape=write_tape(calls))
        cut.append(replace(result, trajectory=replace(made, extra=extra)))
    with pytest.raises(UserError, match=r"too long to be stored; nothing was written.*--drop-div"):
        regrade(stored(tmp_path, cut), tmp_path / "new", graded_by(tmp_path, "first"))


def test_the_grader_is_in_an_empty_folder_without_the_keys_of_other_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stored(tmp_path, played(tmp_path))
    monkeypatch.setenv("JUDGE_KEY", "hidden")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("of the agent")
    server = '{judge: {url: "http://127.0.0.1:1", key: JUDGE_KEY}}'
    config = graded_by(
        tmp_path, "looks_around", f"actor.agent.models={server}", workspace=str(tmp_path / "data")
    )
    regrade(store, tmp_path / "new", config)
    (group,) = groups(tmp_path / "new")
    assert {attempt.feedback for attempt in group.trajectories} == {"[] None"}


@pytest.mark.parametrize("grader", ["broken", "gives_up"])
def test_failures_can_be_left_out(tmp_path: Path, grader: str) -> None:
    store, failing = stored(tmp_path, played(tmp_path)), graded_by(tmp_path, grader)
    tally = regrade(store, tmp_path / "new", failing, drop_diverged=True)
    assert tally == Tally(groups=1, attempts=2, diverged=2)
    (group,) = groups(tmp_path / "new")
    assert {(result.status, result.cause) for result in group.results} == {
        ("failed", "grader_failed")
    }


def test_another_environment_replays_no_agent(tmp_path: Path) -> None:
    store = stored(tmp_path, played(tmp_path))
    world = load(None, [f"env={Path(__file__).with_name('corridors.py')}:Corridor"])
    with pytest.raises(UserError, match="system prompt has changed; nothing was written"):
        regrade(store, tmp_path / "other", world)
