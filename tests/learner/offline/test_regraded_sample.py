"""A grader that is asked again about the same attempts."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from buffer.storage.store import Store
from buffer.tools import store_reads
from learner.offline import regraded_sample
from learner.offline.regraded_sample import Sample, regrade_sample
from r3l.errors import UserError
from r3l.records import Group, GroupPlan
from r3l.run.config import load
from tests.buffer.fakes import Desk
from tests.r3l.rollout.fakes import TASK, explored, learner_of_advice

WORLDS = Path(__file__).with_name("corridors.py")


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> list[Group]:
    """Eight groups of a failure and its retry, which succeeds."""
    from tests.learner.offline.corridors import Corridor

    desk = Desk(tmp_path_factory.mktemp("run") / "store", max_staleness=99,
                algorithm={"name": "r3l", "group_size": 2})  # fmt: skip
    desk.add([replace(TASK, task_id=f"corridor/{i}") for i in range(8)])
    for _ in range(8):
        lease = desk.lease(plan=GroupPlan(2))
        results, reflections = explored(learner_of_advice(), make_env=Corridor)
        desk.put(lease.group_id, [*reflections.values(), *results])
    desk.store.close()
    with Store(desk.folder, read_only=True) as store:
        return [store_reads.group(store, row["group"]) for row in store_reads.rows(store)]


def judged(groups: list[Group], kind: str) -> Sample:
    return regrade_sample(groups, load(None, [f"env={WORLDS}:{kind}"]))


def test_a_grader_that_gives_the_same_rewards_agrees_with_itself(groups: list[Group]) -> None:
    sample = judged(groups, "Corridor")
    assert sample.judged == sum(len(group.trajectories) for group in groups) > 8
    assert (sample.changed, sample.left_out, sample.disagrees) == ([], [], False)


def test_a_grader_that_judges_by_chance_is_found_with_the_attempts(groups: list[Group]) -> None:
    random.seed(1)
    sample = judged(groups, "Fickle")
    group, _, before, after = sample.changed[0]
    assert sample.disagrees and group in {g.group_id for g in groups} and before != after
    assert 0 < len(sample.changed) < sample.judged and sample.interval[0] > 0.05


def test_one_other_reward_may_be_chance() -> None:
    assert not Sample(16, [("g", 0, 0.0, 1.0)]).disagrees
    assert Sample(16, [("g", 0, 0.0, 1.0)] * 4).disagrees and not Sample().disagrees


def test_attempts_that_cannot_be_judged_are_counted(groups: list[Group]) -> None:
    sample = judged(groups, "Broken")
    assert 0 < sample.judged < sum(len(group.trajectories) for group in groups)
    assert "KeyError" in sample.left_out[0]


def test_a_judge_that_takes_too_long_is_left(
    groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regraded_sample, "TIMEOUT_S", 0.0)
    with pytest.raises(UserError, match="8 groups could not be judged again within 0 s"):
        judged(groups, "Corridor")
