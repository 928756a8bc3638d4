"""Groups that may be trained on again: how often, how soon, how old, and undone how."""

import json
import shutil
from collections import Counter

import pytest

from buffer import BufferClient
from buffer.groups import draws
from buffer.indexes.index import Index
from buffer.sampling.samplers import FLOOR
from buffer.server import stats
from buffer.storage import counts
from buffer.tools import commands
from buffer.tools.verify import verify
from buffer.wire.operations import DrawGroups
from r3l import codec, notices
from r3l.errors import NotFound, RecordError, UserError
from r3l.records import GroupPlan
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import Desk


@pytest.fixture
def make(make_desk, tasks):
    def desk(groups=2, **sampling):
        desk = make_desk(max_staleness=3, sampler={"name": "uniform"} | sampling)
        desk.add(tasks(9))
        for _ in range(groups):
            desk.complete()
        return desk

    return desk


def _train(desk, step, version=None):
    draw = desk.draw(2, version=step - 1 if version is None else version)
    if draw is not None:
        desk.commit(draw.draw_id, step)
    return draw


def test_a_group_is_trained_as_often_as_allowed_and_never_once_more(make):
    desk = make(reuse=3)
    for step in (1, 2, 3):
        assert _train(desk, step).groups == ("g0000000001", "g0000000002")
    desk.reopen()
    assert _train(desk, 4) is None
    assert desk.row("g0000000001").steps == (1, 2, 3)
    assert verify(desk.store) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_restart_changes_nothing_about_who_may_be_drawn_again(make, restarted):
    desk = make(groups=4, reuse=3, cooldown=1)
    first, second = _train(desk, 1), _train(desk, 2)
    desk.set_version(3)  # η is 3: what version 0 sampled may be drawn once more
    if restarted:
        desk.reopen()
    third = desk.draw(2, version=3)
    assert set(third.groups) == set(first.groups)
    desk.commit(third.draw_id, 3, version=4)
    if restarted:
        desk.reopen()
    assert desk.draw(2, version=4) is None and set(second.groups).isdisjoint(first.groups)


def test_a_trained_group_rests_for_the_draws_of_its_cooldown(make):
    desk = make(groups=4, reuse=9, cooldown=1)
    first, second = _train(desk, 1), _train(desk, 2)
    assert not set(first.groups) & set(second.groups)
    third = _train(desk, 3)
    assert set(third.groups) == set(first.groups)


def test_a_trained_group_that_is_too_old_is_not_drawn_again_and_does_not_count_as_expired(make):
    desk = make(reuse=9)
    _train(desk, 1)
    desk.set_version(4)
    assert desk.draw(2, version=4) is None
    assert (
        not counts.under(desk.index.counts, "drop") and desk.row("g0000000001").state == "trained"
    )


def test_a_released_draw_of_a_trained_group_leaves_it_as_it_was(make):
    desk = make(reuse=2)
    _train(desk, 1)
    desk.draw(2, version=1)
    desk.reopen()
    assert desk.release_draws() == 2
    assert desk.row("g0000000001").state == "trained"
    assert _train(desk, 2) is not None and _train(desk, 3) is None


def test_forgotten_steps_do_not_count_as_uses(make):
    desk = make(reuse=2)
    _train(desk, 1), _train(desk, 2)
    assert desk.set_version(0) == 2
    assert desk.row("g0000000001").steps == ()
    assert desk.row("g0000000001").state == "complete"
    for step in (1, 2):
        assert _train(desk, step) is not None
    assert _train(desk, 3) is None
    assert verify(desk.store) == []


def test_groups_that_may_be_drawn_again_do_not_count_as_in_flight(make):
    desk = make(groups=8, reuse=9)
    for step in (1, 2, 3, 4):
        _train(desk, step)
    assert desk.index.in_flight == desk.index.counts["group/train/complete"]


def test_the_same_seed_and_the_same_groups_give_the_same_batches(make_desk, tasks, done):
    batches = []
    for _ in range(2):
        desk = make_desk(max_staleness=9, sampler={"name": "prioritised", "reuse": 2}, seed=7)
        desk.add(tasks(9))
        for slot in range(6):
            group = desk.lease(plan=GroupPlan(2)).group_id
            desk.put(group, [done(0), done(1, reward=slot / 5)])
        batches.append([_train(desk, step) for step in (1, 2, 3, 4)])
        desk.reopen()
        with desk.store.read() as txn:
            kept = [txn.draw(draw.draw_id) for draw in batches[-1]]
        assert [k.groups for k in kept] == [draw.groups for draw in batches[-1]]
        desk.store.close()
        shutil.rmtree(desk.folder)
    first, second = ([(d.groups, d.probabilities) for d in run] for run in batches)
    assert first == second


def test_a_batch_carries_its_weights_to_the_learner_and_into_its_replay(
    serve, tasks, done, tmp_path, capsys
):
    served = serve(
        "tcp://127.0.0.1:0", "learner.groups_per_step=4", "buffer.sampler=prioritised",
        "buffer.sampler.alpha=2", "buffer.sampler.beta=0.5", "seed=3",
    )  # fmt: skip
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(9))
        for number in range(4):
            group = client.lease("a", 0, GroupPlan(2)).group_id
            client.put(group, "a", [done(0), done(1, reward=float(number))])
        draw = client.draw(3, 0)
        client.commit(draw.draw_id, 1, 1)
    priorities = {f"g{n + 1:010d}": (n + FLOOR) ** 2 for n in range(4)}
    expected = {g: 4 * p / sum(priorities.values()) for g, p in priorities.items()}
    weights = {g.group_id: w for g, w in zip(draw.groups, draw.row.weights, strict=True)}
    assert weights == pytest.approx({g: expected[g] ** -0.5 for g in weights})
    commands.replay.callback(served.folder, 1)
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert {line["group_id"]: line["weight"] for line in lines} == weights


def mixed(make, **sampling):
    """Four groups, of which two steps trained three: half of a batch is replayed if it can be."""
    desk = make(groups=4, reuse=9, replay_share=0.5, **sampling)
    for step in (1, 2):
        desk.commit(desk.draw(2, version=step - 1).draw_id, step)
    return desk


def test_a_share_of_the_batch_is_trained_groups_and_they_are_marked(make):
    desk = mixed(make)
    fresh = [desk.complete(version=2), desk.complete(version=2)]
    drawn = desk.draw(2, version=2)
    trained = [group_id for group_id in drawn.groups if desk.row(group_id).steps]
    assert list(drawn.replayed) == trained and len(trained) == 1
    assert drawn.replayed[0] not in fresh
    assert verify(desk.store) == []


def test_new_groups_fill_the_places_of_trained_ones_that_are_missing(make):
    desk = make(groups=2, reuse=2, replay_share=0.5)
    assert _train(desk, 1).replayed == ()  # nothing was trained before


def test_a_batch_waits_for_its_new_groups_however_many_trained_ones_there_are(make, monkeypatch):
    desk = mixed(make)
    desk.commit(desk.draw(2, version=2).draw_id, 3)
    assert desk.draw(2, version=3) is None
    assert "1 of 2 groups are ready" in desk.shortage(2, 3)
    assert desk.index.ready(2) == 1
    fails = lambda *_, **__: pytest.fail("it sorted all of them")  # noqa: E731
    monkeypatch.setattr(draws, "sorted", fails, raising=False)
    assert desk.draw(2, version=3) is None


def test_trained_groups_have_a_limit_of_their_own_and_new_ones_keep_theirs(make):
    desk = mixed(make, replay_staleness=7)
    old = desk.complete(version=0)
    desk.set_version(7)
    new = [desk.complete(version=7), desk.complete(version=7)]
    desk.reopen()
    drawn = desk.draw(2, version=7)
    assert len(drawn.replayed) == 1 and drawn.groups[-1] in new
    assert desk.row(old).cause == "stale"
    desk.set_version(8)
    assert desk.draw(2, version=8) is None  # version 0 is too old by now, and one new is left


def test_actors_are_admitted_for_the_new_groups_of_a_batch_alone(make, done):
    desk = mixed(make)
    desk.commit(desk.draw(2, version=2).draw_id, 3)
    granted = 0
    while hasattr(desk.lease(version=3), "group_id"):
        granted += 1
    assert granted == 4  # B/2 · (η + 1) with η = 3, not B · (η + 1)


def test_a_group_without_contrast_leaves_its_place_to_a_trained_one(make_desk, tasks):
    sampler = {"name": "fifo", "reuse": 9, "replay_no_contrast": True}
    desk = make_desk(algorithm={"name": "dapo", "group_size": 2}, max_staleness=5, sampler=sampler)
    desk.add(tasks(9))
    first = [desk.complete(rewards=(0.0, 1.0)) for _ in range(2)]
    assert _train(desk, 1).replayed == ()
    flat = desk.complete(version=1, rewards=(0.0, 0.0))
    assert desk.draw(2, version=1) is None
    fresh = desk.complete(version=1, rewards=(0.0, 1.0))
    drawn = desk.draw(2, version=1)
    [again] = drawn.replayed
    assert again in first and set(drawn.groups) == {again, fresh} and drawn.replaced == (flat,)
    desk.commit(drawn.draw_id, 2)
    desk.complete(version=2, rewards=(0.0, 1.0))
    assert desk.draw(2, version=2) is None  # none was replaced since: two new ones are needed
    desk.complete(version=2, rewards=(0.0, 1.0))
    assert desk.draw(2, version=2).replayed == ()
    assert verify(desk.store) == []


def test_before_anything_was_trained_new_groups_fill_all_places(make_desk, tasks):
    sampler = {"reuse": 2, "replay_no_contrast": True}
    desk = make_desk(algorithm={"name": "dapo", "group_size": 2}, max_staleness=5, sampler=sampler)
    desk.add(tasks(9))
    for rewards in ((0.0, 0.0), (0.0, 1.0)):
        desk.complete(rewards=rewards)
    assert desk.draw(2) is None
    desk.complete(rewards=(1.0, 0.5))
    assert desk.draw(2).replayed == ()


STATEFUL = """
from buffer.sampling.samplers import Pick, Sampler
class Rounds(Sampler):
    def __init__(self, config):
        super().__init__(config)
        self.done = []
    def pick(self, candidates, count, source):
        self.done.append([row.group_id for row in candidates])
        return [Pick(row) for row in candidates[-count:]]
    def state(self):
        return {"done": self.done}
    def restore(self, state):
        self.done = state["done"]
"""


def test_the_state_of_a_sampler_is_that_of_the_draws_on_disk_also_after_a_restart(
    make_desk, tasks, tmp_path
):
    file = tmp_path / f"rounds_{tmp_path.name}.py"
    file.write_text(STATEFUL)
    sampler = {"name": f"{file}:Rounds", "reuse": 9}
    desk = make_desk(max_staleness=3, sampler=sampler)
    desk.add(tasks(9)), desk.complete(), desk.complete(), desk.complete()

    def seen():
        with desk.store.read() as txn:
            return len(codec.unpack(txn.sampler_state(), 1 << 20)["state"]["done"])

    _train(desk, 1)
    assert seen() == 1
    with pytest.raises(ZeroDivisionError):  # a transaction that fails takes its picks with it
        desk.do(lambda work: (draws.draw(work, DrawGroups(2, 1, "learner"), "x"), 1 / 0))
    desk.index = Index.load(desk.store, desk.config.buffer)
    _train(desk, 2)
    assert seen() == 2
    desk.configure(sampler=sampler)  # another service
    desk.reopen()
    _train(desk, 3)
    assert seen() == 3


def test_a_pick_that_failed_leaves_nothing_in_the_sampler(make_desk, tasks, tmp_path):
    file = tmp_path / f"fails_{tmp_path.name}.py"
    picks = "return [Pick(row) for row in candidates[-count:]]"
    file.write_text(STATEFUL.replace(picks, f"1 / (len(candidates) - 3); {picks}"))
    desk = make_desk(max_staleness=3, sampler={"name": f"{file}:Rounds", "reuse": 9})
    desk.add(tasks(9)), desk.complete(), desk.complete(), desk.complete()
    for _ in range(2):
        with pytest.raises(UserError, match=r"pick raised ZeroDivisionError: .*fails_.*py:9\)"):
            desk.draw(2)
    desk.complete()
    assert desk.draw(2) is not None
    with desk.store.read() as txn:
        assert len(codec.unpack(txn.sampler_state(), 1 << 20)["state"]["done"]) == 1


@pytest.mark.parametrize("share", [0.5, None])
def test_four_samplers_give_four_runs_with_replay(make_desk, tasks, tmp_path, share):
    file = tmp_path / f"best_{tmp_path.name}.py"
    file.write_text(
        "from buffer.sampling.samplers import Pick, Sampler\n"
        "class Best(Sampler):\n"
        "    def pick(self, candidates, count, source):\n"
        "        best = sorted(candidates, key=lambda row: -max(row.rewards))\n"
        "        return [Pick(row) for row in best[:count]]\n"
    )
    runs = {}
    for number, name in enumerate(("fifo", "uniform", "prioritised", f"{file}:Best")):
        sampler = {"name": name, "reuse": 9, "replay_share": share, "alpha": 4.0}
        desk = Desk(tmp_path / f"{number}", max_staleness=20, groups_per_step=4, sampler=sampler)
        desk.add(tasks(40))
        for slot in range(12):
            desk.complete(rewards=(0.0, slot * 7 % 11 / 10))
        runs[name] = [_again(desk, step) for step in range(1, 7)]
        desk.store.close()
    replayed = [tuple(draw.replayed for draw in run) for run in runs.values()]
    assert len(set(replayed)) == 4, replayed
    if share:
        last = {}
        for step, drawn in enumerate(runs["fifo"], 1):
            longest_ago = sorted(last, key=lambda group: (last[group], group))
            assert drawn.replayed == tuple(sorted(longest_ago[: len(drawn.replayed)]))
            last |= dict.fromkeys(drawn.groups, step)


def _again(desk, step):
    desk.complete(version=step - 1), desk.complete(version=step - 1)
    drawn = desk.draw(4, version=step - 1)
    desk.commit(drawn.draw_id, step)
    return drawn


def test_a_consumer_sets_priorities_that_survive_restarts_and_that_the_sampler_reads(make):
    desk = make(groups=2, name="prioritised", reuse=9, alpha=5.0)
    _train(desk, 1)
    for _ in range(4):
        desk.complete(version=1)
    first, second = "g0000000001", "g0000000004"
    assert desk.update_priorities({first: 1e6, second: 2e6}) == 2
    desk.reopen()
    assert desk.row(first).priority == 1e6
    assert desk.draw(2, version=1).groups == (first, second)
    assert verify(desk.store) == []


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_number_that_is_no_priority_sets_none(make, value):
    desk = make()
    with pytest.raises(RecordError, match=r"of group 'g0000000002': must be from 0 to"):
        desk.update_priorities({"g0000000001": 1.0, "g0000000002": value})
    assert desk.row("g0000000001").priority is None


def test_a_priority_of_an_unknown_group_is_named_and_those_that_are_gone_are_left_out(make):
    desk = make(groups=3)
    with pytest.raises(NotFound, match="there is no group 'g77'"):
        desk.update_priorities({"g0000000001": 1.0, "g77": 1.0})
    assert desk.row("g0000000001").priority is None
    drawn = desk.draw(2)
    rest = {f"g000000000{n}" for n in (1, 2, 3)} - set(drawn.groups)
    desk.discard(drawn.draw_id, "nonfinite")
    assert desk.update_priorities(dict.fromkeys((*drawn.groups, *rest), 2.0)) == 1
    desk.now += 1e6
    [gone, *_] = desk.evict(RetentionConfig(groups=0, grace_s=0.0))
    assert desk.update_priorities({gone: 1.0}) == 0


def test_with_fifo_and_reuse_the_share_of_groups_that_died_of_age_is_said(
    make_desk, tasks, capsys, monkeypatch
):
    monkeypatch.setattr(notices, "_said", {})
    desk = make_desk(max_staleness=1, sampler={"name": "fifo", "reuse": 3, "replay_staleness": 9})
    desk.add(tasks(9))
    for _ in range(4):
        desk.complete()
    for step in (1, 2, 3):
        _train(desk, step)  # the two groups that were leased first
    assert {desk.row(f"g000000000{n}").cause for n in (3, 4)} == {"stale"}
    assert "r3l-notice: 33% of the groups were too old before a step" in capsys.readouterr().err
    collected = desk.do(lambda w: stats.collect(w, desk.store, stats.ActorReports(), Counter()))
    assert (collected.stale_share, collected.drops) == (0.5, {"stale": 2})
    desk.store.close()
    commands.ls.callback(desk.folder, "", 50)
    end = capsys.readouterr().err
    assert end == "4 groups; 2 died of age, 50% of the trained and expired ones\n"


def test_nothing_is_said_of_age_if_none_died_or_a_share_is_replayed(make_desk, tasks, capsys):
    desk = make_desk(max_staleness=1, sampler={"reuse": 3, "replay_share": 0.5})
    desk.add(tasks(9)), desk.complete(), desk.complete()
    desk.store.close()
    commands.ls.callback(desk.folder, "", 50)
    assert capsys.readouterr().err == "2 groups\n"
    desk.open()
    desk.set_version(9)
    assert desk.draw(2, version=9) is None
    assert "r3l-notice" not in capsys.readouterr().err
