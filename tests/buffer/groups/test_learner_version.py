"""A learner that goes back to a checkpoint, gives batches up, or asks for fresher groups."""

import pytest


@pytest.mark.parametrize("sampler", ["fifo", "uniform"])
def test_a_resumed_learner_draws_the_same_batches_again(make_desk, tasks, sampler):
    desk = make_desk(max_staleness=8, sampler=sampler)
    desk.add(tasks(40))
    for _ in range(12):
        desk.complete()
    first = []
    for step in (1, 2, 3):
        draw = desk.draw(2, version=step - 1)
        desk.commit(draw.draw_id, step)
        first.append(draw.groups)
    open_draw = desk.draw(2, version=3)
    desk.reopen()
    desk.set_version(1)
    desk.release_draws()
    desk.complete()
    again = []
    for step in (2, 3, 4):
        draw = desk.draw(2, version=step - 1)
        desk.commit(draw.draw_id, step)
        again.append(draw.groups)
    assert again == [first[1], first[2], open_draw.groups]


def test_a_learner_resumed_from_an_older_checkpoint_trains_forgotten_steps_again(desk, tasks):
    desk.add(tasks(9))
    batches = []
    for step in (1, 2, 3):
        for _ in range(2):
            desk.complete(version=step - 1)
        draw = desk.draw(2, version=step - 1)
        batches.append(draw.groups)
        desk.commit(draw.draw_id, step)
    assert desk.set_version(1) == 4
    assert desk.index.progress.version == 1
    for step in (2, 3):
        draw = desk.draw(2, version=step - 1)
        assert draw.groups == batches[step - 1]
        desk.commit(draw.draw_id, step)
    with desk.store.read() as txn:
        trained = [g for step in (1, 2, 3) for g in txn.step(step).groups]
    assert sorted(trained) == sorted(set(trained)) and len(trained) == 6
