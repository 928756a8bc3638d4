"""Attempts that show how a reward is hacked, from a run's store."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from buffer.storage.store import Store
from launch.cli import main
from launch.inspection import reward_examples
from launch.inspection.doctor import findings
from launch.inspection.reward_examples import CHOICES, examples, newest
from launch.inspection.reward_rules import Suspicion
from r3l.records import Extra, GroupPlan, SlotResult, done
from r3l.run import config as configuration
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import RunFolder
from tests.buffer.fakes import Desk, finished
from tests.launch.inspection.snapshots import healthy
from tests.r3l.rollout.fakes import TASK, explore, learner_of_advice

WORLDS = Path(__file__).parents[2] / "learner" / "offline" / "corridors.py"

Make = Callable[[int], list[SlotResult]]


def slot(number: int, reward: float, text: str, *, problem: int = 0, **parts):
    attempt = finished(number, reward=reward).trajectory
    extra = Extra(reward_parts=parts)
    said = replace(attempt, observations=(f"question {problem}", ""), actions=(text,), extra=extra)
    return done(said)


def stored(folder: Path, make: Make, groups: int = 3) -> Path:
    """The store of a run's folder, with groups whose slots `make` makes."""
    desk = Desk(folder / "buffer", max_staleness=99, algorithm={"name": "grpo", "group_size": 2})
    desk.add([replace(TASK, task_id=f"q/{n}") for n in range(groups)])
    for n in range(groups):
        results = make(n)
        desk.put(desk.lease(plan=GroupPlan(len(results))).group_id, results)
    desk.store.close()
    return folder / "buffer"


def test_the_best_paid_attempts_with_little_of_a_part_are_shown(tmp_path):
    store = stored(tmp_path, lambda n: [slot(0, 0.9, "sugar", style=0.9, answer=0.0),
                                        slot(1, 0.9, "honest", style=0.0, answer=0.9)])  # fmt: skip
    (shown,) = examples(store, [Suspicion("part", "", "", "answer")])
    assert shown.count("slot 0 (reward 0.9, answer 0): 'sugar'") == 2
    assert "honest" not in shown and "group g0000000003 " in shown


def test_the_longest_and_the_shortest_attempt_of_a_group_are_shown(tmp_path):
    store = stored(tmp_path, lambda n: [slot(0, 0.1, "brief"),
                                        slot(1, 0.9, "very " * (40 + n))])  # fmt: skip
    (shown,) = examples(store, [Suspicion("length", "", "")])
    first, second = shown.split("; ")
    assert first.startswith("group g0000000003 slot 1 (reward 0.9, 210 characters): 'very very")
    assert second == "group g0000000003 slot 0 (reward 0.1, 5 characters): 'brief'"
    assert len(first) < 150


def test_the_reply_that_earns_in_most_problems_is_shown_with_two_of_them(tmp_path):
    store = stored(tmp_path, lambda n: [slot(0, 1.0, "Great!", problem=n),
                                        slot(1, 1.0, f"answer {n}", problem=n)])  # fmt: skip
    (shown,) = examples(store, [Suspicion("one_reply", "", "")])
    assert shown.count("'Great!'") == 2 and "answer" not in shown


def test_doctor_names_the_suspicion_with_examples_and_what_to_do(tmp_path):
    stored(tmp_path, lambda n: [slot(0, 1.0, "win"), slot(1, 0.0, "lose")])
    suspicion = Suspicion("success", "it rises", "read them", "training")
    (one,) = findings(healthy(run=str(tmp_path), reward=[suspicion]))
    assert one.problem and one.remedy == "read them"
    assert one.what.startswith("the reward may be hacked: it rises; for example group g")
    assert one.what.count("'win'") == 2


def test_the_store_is_read_once_for_all_suspicions(tmp_path, monkeypatch):
    stored(tmp_path, lambda n: [slot(0, 1.0, "win"), slot(1, 0.0, "lose")])
    read = []
    monkeypatch.setattr(
        reward_examples, "newest", lambda store: read.append(store) or newest(store)
    )
    several = [Suspicion(kind, "it rises", "read them", "answer") for kind in CHOICES]
    assert len(findings(healthy(run=str(tmp_path), reward=several))) == len(several)
    assert read == [tmp_path / "buffer"]
    assert findings(healthy(run=str(tmp_path))) == [] and len(read) == 1


@pytest.mark.parametrize("kind", CHOICES)
def test_a_run_without_such_attempts_has_no_examples(kind, tmp_path):
    assert examples(tmp_path / "none", [Suspicion(kind, "", "", "answer")]) == [""]
    store = stored(tmp_path, lambda n: [SlotResult(0, "failed", cause="x")])
    assert examples(store, [Suspicion(kind, "", "", "answer")]) == [""]
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "data.mdb").write_bytes(b"no store")
    (why,) = examples(tmp_path / "bad", [Suspicion(kind, "", "", "a")])
    assert why.startswith("no examples: ")


def test_an_unfinished_group_is_left_out(tmp_path):
    desk = Desk(tmp_path / "buffer", max_staleness=99, algorithm={"name": "grpo", "group_size": 2})
    desk.add([TASK])
    desk.put(desk.lease(plan=GroupPlan(2)).group_id, [slot(0, 1.0, "win")])
    desk.store.close()
    assert newest(tmp_path / "buffer") == []


def test_a_damaged_group_is_left_out(tmp_path):
    store = stored(tmp_path, lambda n: [slot(0, 1.0, "win"), slot(1, 0.0, "lose")])
    with Store(store) as opened, opened.write() as txn:
        row = next(iter(txn.rows()))
        txn.put_row(replace(row, checksums=tuple(each + 1 for each in row.checksums)))
    assert [group.group_id for group in newest(store)] == ["g0000000003", "g0000000002"]
    assert [group.group_id for group in newest(store, 2)] == ["g0000000003"]


def judged_by(run: Path, kind: str, code: int = 1) -> str:
    """What doctor says of a run whose attempts it judges again in a world of this kind."""
    run.mkdir()
    stored(run, lambda n: explore(learner_of_advice(), "algorithm=grpo")[:2], 8)
    settings = configuration.load(None, [f"env={WORLDS}:{kind}"])
    (run / "config.yaml").write_text(configuration.dump(settings))
    RunFolder(run).add_progress(StepLine(1, {}))
    done = CliRunner().invoke(main, ["doctor", str(run), "--regrade", "16"])
    assert done.exit_code == code, done.output  # 1: the run has not reached its last step
    return done.output


def test_doctor_says_whether_a_sample_of_attempts_gets_the_same_rewards_again(tmp_path):
    same, fickle = (judged_by(tmp_path / kind, kind) for kind in ("Corridor", "Fickle"))
    assert "hint     of 16 attempts judged again 0 got another reward (0% to " in same
    assert "disagrees" not in same
    assert "problem  the judge disagrees with itself: of 16 attempts judged again " in fickle
    assert "; for example group g00" in fickle and "→ ask it at temperature 0" in fickle
    broken = judged_by(tmp_path / "Broken", "Broken", code=2)
    assert "no attempt could be judged again: left out 16 attempts: " in broken
    assert "KeyError" in broken


def test_a_run_without_attempts_has_no_sample(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(configuration.dump(configuration.load(None, [])))
    done = CliRunner().invoke(main, ["doctor", str(run), "--regrade", "4"])
    assert (
        done.exit_code == 2 and "no attempt could be judged again: its store has no" in done.output
    )
