"""The conversation of a finished slot."""

import pytest
from msgspec.structs import replace

from learner.evaluation.conversation import conversation
from r3l.records import Extra, SlotResult, Task, done
from tests.r3l.training.fakes import RESPONSE, trajectory


def slot(**more):
    return done(trajectory(0, 1.0, steps=3, **more))


def test_every_turn_has_what_was_read_what_was_said_and_its_tokens():
    result = slot()
    played = result.trajectory
    one = conversation(Task("a/1", "a", 1), 2, result, several=False)
    assert one.key == ("a/1", 2) and one.success and one.finish == played.finish
    assert [step.observation for step in one.steps] == list(played.observations[:-1])
    assert [step.action for step in one.steps] == list(played.actions)
    assert [step.length for step in one.steps] == [RESPONSE] * 3
    assert (one.last, one.length, one.generated) == (
        played.observations[-1],
        len(played.token_ids),
        3 * RESPONSE,
    )


def test_a_record_without_rewards_of_steps_has_turns_without_them():
    bare = slot()
    import numpy as np

    rewards, cuts = np.array([0, 0, 1], np.float32), np.array([True, False, False])
    full = replace(
        bare, trajectory=replace(bare.trajectory, extra=Extra(step_rewards=rewards, step_cut=cuts))
    )
    task = Task("a/1", "a", 1)
    found = {
        name: [(step.reward, step.cut) for step in conversation(task, 0, one, several=False).steps]
        for name, one in {"bare": bare, "full": full}.items()
    }
    assert found["bare"] == [(None, False)] * 3
    assert found["full"] == [(0.0, True), (0.0, False), (1.0, False)]


def test_a_tape_is_not_read():
    """Whoever plays an attempt can store it; it must not end the learner that evaluates."""
    damaged = slot(extra=Extra(tape=b"no tape"))
    one = conversation(Task("a/1", "a", 1), 0, damaged, several=False)
    assert one.calls == () and one.tokens == 3 * RESPONSE


def test_a_failed_slot_has_its_cause_and_no_turn():
    failed = SlotResult(0, "failed", cause="environment_hang")
    one = conversation(Task("a/1", "a", 1), 0, failed, several=True)
    assert (one.cause, one.steps, one.success) == ("environment_hang", (), False)


@pytest.mark.parametrize(("several", "family"), [(True, "a"), (False, "hard")])
def test_the_family_is_the_environment_if_there_are_several(several, family):
    task = Task("a/1", "a", 1, {"family": "hard"})
    assert conversation(task, 0, slot(), several=several).family == family
