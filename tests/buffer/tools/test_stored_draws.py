"""Draws from finished stores: which groups, how often, and the same ones again."""

import json
from itertools import chain

import pytest

from buffer.tools.stored_draws import StoredDraws
from r3l.config import RunConfig, load
from r3l.errors import UserError
from tests.buffer.fakes import Desk


@pytest.fixture
def store(tmp_path, tasks):
    """Makes a finished store of groups with these rewards, all of one task."""

    def make(*rewards, name="store"):
        desk = Desk(tmp_path / name, groups_per_step=1, max_staleness=99)
        desk.add(tasks(1))
        for step, one in enumerate(rewards):
            desk.complete(version=step, rewards=one)
            desk.commit(desk.draw(1, version=step).draw_id, step + 1)
        desk.store.close()
        return desk.folder

    return make


@pytest.fixture
def opened(tmp_path):
    draws = []

    def open_(folders, *settings, ledger="offline.jsonl"):
        for one in draws:
            one.close()
        config = load(None, ["learner.groups_per_step=2", "algorithm=grpo", *settings])
        draws.append(StoredDraws(folders, config, tmp_path / ledger))
        draws[-1].resume(0) if not (tmp_path / ledger).exists() else None
        return draws[-1]

    yield open_
    draws[-1].close() if draws else None


def ids(draw):
    return [group.group_id for group in draw.groups]


def drawn(draws, count, first=0):
    """The groups of the next draws, trained in one step each."""
    batches = []
    for version in range(first, first + count):
        draw = draws.draw(version)
        batches.append(ids(draw))
        draws.keep(draw, trained=True)
    return batches


def test_groups_are_replayed_from_their_second_draw_on_for_algorithms_that_ask(
    store, opened
) -> None:
    folder = store([0.0, 1.0], [1.0, 0.0])
    for algorithm, marked in (("spear", 2), ("grpo", 0)):
        ledger = f"{algorithm}.jsonl"
        settings = (f"algorithm={algorithm}", "buffer.sampler.reuse=2")
        draws = opened([folder], *settings, ledger=ledger)
        first = draws.draw(0)
        assert first.replayed == ()
        draws.keep(first, trained=True)
        assert len(draws.draw(1).replayed) == marked


def test_settings_that_mix_stored_groups_with_new_ones_are_refused(store, opened) -> None:
    folder = store([0.0, 1.0], [1.0, 0.0])
    with pytest.raises(UserError, match="offline there are no new ones; leave them out"):
        opened([folder], "buffer.sampler.replay_share=0.5", "buffer.sampler.reuse=2")


def test_every_group_is_drawn_as_often_as_reuse_allows(store, opened):
    folder = store(*[(0.0, 1.0)] * 5)
    draws = opened([folder])
    assert drawn(draws, 2) == [["g0000000001", "g0000000002"], ["g0000000003", "g0000000004"]]
    assert draws.draw(2) is None  # one group is left
    twice = opened([folder], "buffer.sampler.reuse=2", ledger="twice.jsonl")
    assert drawn(twice, 4)[:2] == [["g0000000001", "g0000000002"]] * 2  # fifo: the first again
    assert twice.draw(4) is None


def test_any_sampler_picks_and_its_weights_are_kept(store, opened):
    folder = store((0.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.0, 1.0))
    draw = opened([folder], "buffer.sampler=prioritised", "buffer.sampler.alpha=5").draw(0)
    assert ids(draw) == ["g0000000002", "g0000000004"]
    assert draw.probabilities == pytest.approx([0.5, 0.5]) and draw.version == 0
    newest = opened([folder], "buffer.sampler=freshest", ledger="other.jsonl").draw(0)
    assert ids(newest) == ["g0000000003", "g0000000004"]


def test_groups_without_contrast_are_left_out_for_an_algorithm_that_needs_it(store, opened):
    folder = store((0.0, 0.0), (0.0, 1.0), (1.0, 0.0))
    assert len(opened([folder]).rows) == 3
    assert set(opened([folder], "algorithm=dapo").rows) == {"g0000000002", "g0000000003"}
    with pytest.raises(UserError, match="no finished training group whose rewards differ"):
        opened([store((0.0, 0.0), name="flat")], "algorithm=dapo")


def test_several_stores_are_drawn_from_and_their_groups_told_apart(store, opened):
    folders = [store(*[(0.0, 1.0)] * 2, name=name) for name in ("a", "b")]
    draws = opened(folders, "learner.groups_per_step=4")
    assert drawn(draws, 1) == [["0/g0000000001", "0/g0000000002", "1/g0000000001", "1/g0000000002"]]


def test_recall_reaches_over_all_stores_but_not_into_the_group_itself(store, opened):
    folders = [store((0.0, 0.0), name="a"), store((0.0, 1.0), name="b")]
    draw = opened(folders, "algorithm=arpo", "learner.groups_per_step=1").draw(0)
    assert ids(draw) == ["0/g0000000001"]
    [one] = draw.recalled
    assert (one.into, one.group_id, one.trajectory.slot) == ("0/g0000000001", "1/g0000000001", 1)
    alone = opened(folders[:1], "algorithm=arpo", "learner.groups_per_step=1", ledger="x.jsonl")
    assert alone.draw(0).recalled == []


def test_a_resumed_run_draws_and_recalls_the_same_again(store, opened, tmp_path):
    folder = store(*[(0.0, 0.0), (1.0, 1.0), (0.0, 1.0)] * 4)
    settings = ("algorithm=r3", "buffer.sampler=uniform", "buffer.sampler.reuse=3", "seed=5")
    draws = opened([folder], *settings)
    whole = drawn(draws, 9)
    lines = (tmp_path / "offline.jsonl").read_text()
    assert any(json.loads(line)["recalled"] for line in lines.splitlines())
    again = opened([folder], *settings)
    again.resume(4)
    assert len((tmp_path / "offline.jsonl").read_text().splitlines()) == 4
    assert drawn(again, 5, first=4) == whole[4:]
    assert (tmp_path / "offline.jsonl").read_text() == lines


def test_a_skipped_batch_is_not_drawn_again_even_after_a_resume(store, opened):
    folder = store(*[(0.0, 1.0)] * 6)
    draws = opened([folder], "buffer.sampler.reuse=9")
    bad = draws.draw(0)
    draws.keep(bad, trained=False)
    assert not set(ids(bad)) & set(chain(*drawn(draws, 2)))
    again = opened([folder], "buffer.sampler.reuse=9")
    again.resume(1)
    assert not set(ids(bad)) & set(chain(*drawn(again, 3, first=1)))


def test_a_store_without_training_groups_is_refused(tmp_path, opened):
    Desk(tmp_path / "empty").store.close()
    with pytest.raises(UserError, match="holds no finished training group"):
        opened([tmp_path / "empty"])
    with pytest.raises(UserError, match="names a store twice"):
        opened([tmp_path / "empty", tmp_path / "empty"])
    with pytest.raises(UserError, match="no store there"):
        opened([tmp_path / "nowhere"])


def test_the_configuration_is_the_runs(opened, store):
    assert isinstance(opened([store((0.0, 1.0))]).config, RunConfig)
