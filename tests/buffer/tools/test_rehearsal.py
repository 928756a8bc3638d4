"""Rehearsals of recorded paces whose outcome can be worked out by hand."""

from dataclasses import replace

import pytest

from buffer.tools.recorded import Pace, Played, Recorded
from buffer.tools.rehearsal import Outcome, Rehearsal
from r3l.config import load
from r3l.errors import UserError
from r3l.records import GroupPlan, Task

RECORD = Recorded(
    groups=tuple(
        Played(10.0, (0.0, 1.0, 0.5, 1.0), GroupPlan(4), f"t/{number}") for number in range(40)
    ),
    tasks=tuple(Task(f"t/{number}", "t", number) for number in range(40)),
    actors=1,
    places=4,
    per_step=4,
    step_s=(2.0,),
    between_s=0.0,
    load_s=0.0,
    pace=Pace(12.0, 0.8, 0.2, 0.0),
)


def play(record: Recorded = RECORD, actors: int = 1, steps: int = 20, **more: object) -> Outcome:
    settings = {"learner.groups_per_step": 4, "buffer.max_staleness": 0} | more
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    config = load(None, ["algorithm=grpo", "algorithm.group_size=4", *overrides])
    return Rehearsal(record, config, actors, steps).run()


def test_a_synchronous_run_plays_and_trains_in_turns() -> None:
    found = play()
    assert found.pace.step_s == pytest.approx(12, abs=0.3)  # an actor asks every quarter second
    assert found.pace.learner_idle == pytest.approx(10 / 12, abs=0.02)
    assert found.pace.actor_idle == pytest.approx(2 / 12, abs=0.02)
    assert found.pace.staleness == 0 and found.expired == {}


def test_with_staleness_actors_play_while_the_learner_trains() -> None:
    found = play(buffer__max_staleness=2)
    assert found.pace.step_s == pytest.approx(10, abs=0.3)
    assert found.pace.actor_idle < 0.04 and 0 < found.pace.staleness <= 2


def test_more_actors_shorten_steps_until_the_learner_is_the_limit() -> None:
    seconds = [play(actors=n, buffer__max_staleness=9).pace.step_s for n in (1, 2, 8)]
    assert seconds[1] == pytest.approx(5, abs=0.3)
    assert seconds[2] == pytest.approx(2, abs=0.05)
    assert play(actors=8, buffer__max_staleness=9).pace.learner_idle < 0.05


def test_a_larger_batch_takes_a_step_of_as_many_times_the_seconds() -> None:
    found = play(actors=2, learner__groups_per_step=8)
    assert found.pace.step_s == pytest.approx(10 + 4, abs=0.3)


def test_groups_that_are_played_together_take_longer() -> None:
    assert play(replace(RECORD, slowdown=0.1)).pace.step_s == pytest.approx(13 + 2, abs=0.3)
    alone = play(replace(RECORD, slowdown=0.1, places=1), actors=4)
    assert alone.pace.step_s == pytest.approx(12, abs=0.3)


def test_a_group_that_stays_behind_is_played_faster_than_beside_others() -> None:
    first, *others = RECORD.groups[:4]
    long = (replace(first, seconds=20.0), *others)
    found = play(replace(RECORD, groups=long, tasks=RECORD.tasks[:4], slowdown=0.1))
    assert found.pace.step_s == pytest.approx(13 + 10 + 2, abs=0.3)


def test_actors_share_the_groups_of_a_batch() -> None:
    found = play(replace(RECORD, slowdown=0.1), actors=2)
    assert found.pace.step_s == pytest.approx(11 + 2, abs=0.6)


def test_long_groups_expire_and_are_told_by_the_difficulty_of_their_task() -> None:
    slow = tuple(
        replace(one, seconds=100.0, rewards=(0.0, 0.2, 0.0, 0.0)) if place % 8 == 0 else one
        for place, one in enumerate(RECORD.groups)
    )
    found = play(replace(RECORD, groups=slow), actors=2, steps=40, buffer__max_staleness=1)
    [(cause, kind)] = found.expired
    assert (cause, kind) == ("stale", "hard") and 0 < found.expired[cause, kind] <= 1


def test_groups_without_contrast_are_replaced_as_the_service_does() -> None:
    flat = tuple(
        replace(one, rewards=(1.0,) * 4) if place % 2 else one
        for place, one in enumerate(RECORD.groups)
    )
    record = replace(RECORD, groups=flat)
    overrides = ["algorithm=dapo", "algorithm.group_size=4", "learner.groups_per_step=4"]
    found = Rehearsal(record, load(None, overrides), 1, 20).run()
    assert found.expired["no_contrast", "easy"] == 1
    nothing = replace(RECORD, groups=tuple(replace(one, rewards=(1.0,) * 4) for one in flat))
    with pytest.raises(UserError, match="step 1 never gets its batch of 4 groups"):
        Rehearsal(nothing, load(None, overrides), 1, 20).run()


def test_the_same_seed_gives_the_same_outcome() -> None:
    assert play(buffer__sampler="uniform") == play(buffer__sampler="uniform")
