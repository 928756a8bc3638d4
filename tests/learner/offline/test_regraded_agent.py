"""Stored attempts of an agent get the rewards of another grader, which sees their calls."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from envs.registry import tasks_of_all
from learner.offline.regrade import regrade
from r3l.codec import encode
from r3l.errors import UserError
from r3l.records import GroupPlan, SlotResult
from r3l.run.config import RunConfig, load
from r3l.views.tape import read_tape, write_tape
from tests.actors.agents.test_agent_attempt import config_of, play
from tests.actors.agents.test_tape_reader import answers, explored
from tests.actors.agents.test_tape_reader import config_of as walker
from tests.buffer.fakes import Desk
from tests.learner.offline.test_regrade import groups, sound
from tests.r3l.fakes import ScriptedPolicy

pytestmark = pytest.mark.system

GRADERS = """
import json, os, time
def first(task, calls):
    right = calls[-1]["reply"]["content"] == task["answer"]
    return {"reward": float(right), "parts": {"calls": len(calls)}, "feedback": "as before"}

def second(task, calls):
    said = calls[0]["messages"][-1]["content"]
    return {"reward": 0.5, "feedback": said, "scores": {"calls": len(calls)}}

def a_third(task, calls):
    said = [call["reply"]["content"] for call in calls]
    if said[0].endswith("3"):
        raise [KeyError, ValueError][said[0] == "no 3"]("not " + json.dumps(said))
    return 0.25

def in_folder(task, calls, folder):
    return 1.0

def same(function):
    return function

@same
def decorated(task, calls, folder):
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


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[SlotResult]:
    """Two attempts of two calls each."""
    return play(graded_by(tmp_path_factory.mktemp("played"), "first"), attempts=2)[0]


def stored(folder: Path, results: list[SlotResult]) -> Path:
    size = len(results)
    desk = Desk(folder / "store", max_staleness=9, algorithm={"name": "grpo", "group_size": size})
    desk.add(tasks_of_all(graded_by(folder, "first").env, "train", 1))
    lease = desk.lease(plan=GroupPlan(size))
    desk.put(lease.group_id, results)
    desk.commit(desk.draw(1).draw_id, 1)
    desk.store.close()
    return desk.folder


def test_the_same_grader_changes_nothing_and_another_one_the_judgement_alone(
    tmp_path: Path, played: list[SlotResult]
) -> None:
    store = stored(tmp_path, played)
    tally = regrade(store, tmp_path / "same", graded_by(tmp_path, "first"))
    assert (tally.before, tally.after, tally.changed) == ([1.0, 1.0], [1.0, 1.0], 0)
    assert [*map(encode, groups(tmp_path / "same"))] == [*map(encode, groups(store))]

    tally = regrade(store, tmp_path / "other", graded_by(tmp_path, "second"))
    assert (tally.before, tally.after, tally.changed) == ([1.0, 1.0], [0.5, 0.5], 2)
    (group,), (before,) = groups(tmp_path / "other"), groups(store)
    for old, new in zip(before.trajectories, group.trajectories, strict=True):
        assert (new.reward, new.feedback, new.observations[-1]) == (0.5, "q", "q")
        assert new.extra.reward_parts == {} and new.extra.scores == {"calls": 2.0}
        judged = {name: getattr(new, name) for name in ("reward", "feedback", "observations")}
        extra = replace(old.extra, reward_parts={}, scores={"calls": 2.0})
        assert encode(replace(old, extra=extra, **judged)) == encode(new)
    assert sound(tmp_path / "other")


def test_a_retry_is_graded_by_all_of_its_calls_those_from_the_tape_too(tmp_path: Path) -> None:
    config = walker(tmp_path, "", 4, "algorithm=r3l", "algorithm.group_size=2")
    ((base, retry),), *_ = explored(config, ScriptedPolicy(answers(2)))
    desk = Desk(tmp_path / "store", max_staleness=9, algorithm={"name": "r3l", "group_size": 2})
    desk.add(tasks_of_all(config.env, "train", 1))
    desk.put(desk.lease(plan=GroupPlan(2)).group_id, [base, retry])
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


def test_a_grader_that_raises_on_a_third_of_the_attempts_costs_them_one_line_a_kind(
    tmp_path: Path, played: list[SlotResult]
) -> None:
    said = ["yes 1", "yes 3", "yes 2", "no 3", "no 4", "yes 5"]
    results = [with_reply(played[0], slot, text) for slot, text in enumerate(said)]
    tally = regrade(stored(tmp_path, results), tmp_path / "new", graded_by(tmp_path, "a_third"))
    assert tally.after == [0.25] * 4 and tally.causes == {"grader_failed": 2}
    assert [line.partition(";")[0] for line in tally.failures()] == [
        "left out 1 attempt: grader_failed (KeyError)",
        "left out 1 attempt: grader_failed (ValueError)",
    ]
    (group,) = groups(tmp_path / "new")
    assert [result.cause for result in group.results] == [
        "", "grader_failed", "", "grader_failed", "", ""]  # fmt: skip
    assert sound(tmp_path / "new")


def with_reply(result: SlotResult, slot: int, text: str) -> SlotResult:
    """The attempt in another slot, with another first reply on its tape."""
    assert result.trajectory is not None
    first, *rest = read_tape(result.trajectory.extra.tape)
    tape = write_tape([replace(first, reply={"role": "assistant", "content": text}), *rest])
    extra = replace(result.trajectory.extra, tape=tape)
    return replace(result, slot=slot, trajectory=replace(result.trajectory, slot=slot, extra=extra))


@pytest.mark.parametrize(
    ("grader", "why"),
    [
        ("broken", "no such field"),
        ("gives_up", "the judge is away"),
        ("hangs", "it took too long"),
    ],
)
def test_a_grader_that_judges_none_is_one_line_and_nothing_is_written(
    tmp_path: Path, grader: str, why: str, played: list[SlotResult]
) -> None:
    store = stored(tmp_path, played)
    line = f"left out 2 attempts: grader_failed.*{why}.*nothing was written"
    with pytest.raises(UserError, match=line) as refused:
        regrade(store, tmp_path / "new", graded_by(tmp_path, grader, "actor.agent.timeout_s=2"))
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("grader", "why"),
    [
        ("in_folder", "needs 'folder', the attempt's folder, which is not stored"),
        ("decorated", "missing 1 required positional argument: 'folder'; nothing was written"),
    ],
)
def test_a_grader_that_needs_the_folder_is_one_line(
    tmp_path: Path, grader: str, why: str, played: list[SlotResult]
) -> None:
    store = stored(tmp_path, played)
    with pytest.raises(UserError, match=why) as refused:
        regrade(store, tmp_path / "new", graded_by(tmp_path, grader))
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()


def test_attempts_whose_messages_were_too_long_are_one_line(
    tmp_path: Path, played: list[SlotResult]
) -> None:
    cut = []
    for result in played:
        made = result.trajectory
        assert made is not None
        calls = [replace(call, messages=()) for call in read_tape(made.extra.tape)]
        extra = replace(made.extra, tape=write_tape(calls))
        cut.append(replace(result, trajectory=replace(made, extra=extra)))
    with pytest.raises(UserError, match=r"no_calls;.*too long to be stored; nothing was written"):
        regrade(stored(tmp_path, cut), tmp_path / "new", graded_by(tmp_path, "first"))


def test_the_grader_is_in_an_empty_folder_without_the_keys_of_other_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: list[SlotResult]
) -> None:
    store = stored(tmp_path, played)
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


def test_another_environment_replays_no_agent(tmp_path: Path, played: list[SlotResult]) -> None:
    store = stored(tmp_path, played)
    world = load(None, [f"env={Path(__file__).with_name('corridors.py')}:Corridor"])
    with pytest.raises(UserError, match="system prompt has changed; nothing was written"):
        regrade(store, tmp_path / "other", world)
