"""Records never change: whatever is drawn, committed, taken back, sampled, evicted, written out,
read in, copied or replayed, the bytes of a finished group stay those of its last put."""

import hashlib

import pytest
from click.testing import CliRunner

from buffer import cli
from buffer.groups import retention
from buffer.sampling.samplers import SAMPLERS
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from r3l import codec
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.storage.full_store import SETTINGS, fill


@pytest.fixture
def filled(make_desk):
    desk = make_desk(**SETTINGS)
    fill(desk)
    return desk


def _records(store):
    """SHA-256 of every record, task and accepted result as it lies in the store, by its key."""
    with store.read() as txn:
        return {
            (table, key): hashlib.sha256(data).hexdigest()
            for table in ("group", "part", "reflection", "task")
            for key, data in txn.scan(table)
        }


def _results(store):
    """Every slot result of every group, encoded; SHA-256 of each."""
    with store.read() as txn:
        ids = [row.group_id for row in txn.rows()]
    return {
        (group_id, result.slot): hashlib.sha256(codec.encode(result)).hexdigest()
        for group_id in ids
        for result in store_reads.group(store, group_id).results
    }


def _draws_and_commits(desk):
    desk.release_draws()
    desk.commit(desk.draw(2, 2).draw_id, 3)
    desk.draw(1, 3)


def _rewind(desk):
    assert desk.set_version(0) > 0
    desk.draw(2, 0)
    desk.release_draws()


def _every_sampler(desk):
    desk.release_draws()
    for step, name in enumerate(sorted(SAMPLERS), 3):
        desk.configure(sampler={"name": name, "reuse": 99, "alpha": 2.0, "decay": 0.5})
        desk.reopen()
        draw = desk.draw(1, 2)
        assert draw.sampler == name
        desk.commit(draw.draw_id, step, version=2)


def _draws_run_out(desk):
    desk.now += 5000
    assert desk.draw(1, 2, consumer="another") is not None


def _staleness(desk):
    desk.set_version(9)
    assert desk.draw(1, 9) is None


CHANGES = {
    "draws and commits": _draws_and_commits,
    "a learner that goes back": _rewind,
    "priorities of every sampler": _every_sampler,
    "draws that run out": _draws_run_out,
    "groups that grow too old": _staleness,
    "a restart": lambda desk: desk.reopen(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_records_stay_the_same_after(filled, change):
    before, results = _records(filled.store), _results(filled.store)
    CHANGES[change](filled)
    assert _records(filled.store) == before and _results(filled.store) == results
    assert verify(filled.store) == []


def test_a_discarded_group_keeps_its_record_and_eviction_removes_no_other(filled):
    before = _records(filled.store)
    filled.discard(6, "nonfinite")
    assert _records(filled.store) == before
    gone = filled.do(lambda work: retention.evict(work, RetentionConfig(groups=3, grace_s=0.0)))
    after = _records(filled.store)
    assert len(gone) > 1 and after.items() <= before.items()
    assert {key[:11].decode() for _, key in before.keys() - after.keys()} == set(gone)


def test_results_do_not_change_when_they_become_a_record(filled, done):
    before = _results(filled.store)
    filled.put("g0000000010", done(1, version=2), "b")
    assert filled.row("g0000000010").state == "complete"
    after = _results(filled.store)
    assert before.items() <= after.items() and len(after) == len(before) + 1


def test_reading_leaves_every_byte_of_the_file(filled, tmp_path):
    filled.store.close()
    file = filled.folder / "data.mdb"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    for command in (
        ["ls"], ["ls", "reward > 0"], ["show", "g0000000003"], ["replay", "2"],
        ["verify"], ["export"], ["compact", str(tmp_path / "copy")],
    ):  # fmt: skip
        run = [command[0], str(filled.folder), *command[1:]]
        result = CliRunner().invoke(cli.main, run, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert hashlib.sha256(file.read_bytes()).hexdigest() == before, command[0]
    filled.open()


def test_a_compacted_copy_has_the_same_records(filled, tmp_path):
    filled.store.copy(tmp_path / "copy")
    copy = Store(tmp_path / "copy", read_only=True)
    assert _records(copy) == _records(filled.store)
    copy.close()


@pytest.mark.parametrize("step", [1, 2])
def test_a_replayed_step_has_the_results_that_were_put(filled, step):
    kept = _results(filled.store)
    replayed, gone = store_reads.replay(filled.store, step)
    found = {
        (group.group_id, result.slot): hashlib.sha256(codec.encode(result)).hexdigest()
        for group in replayed
        for result in group.results
    }
    assert found and found.items() <= kept.items() and len(gone) == (step == 1)
    filled.set_version(0)
    again = filled.draw(2, 0)  # what was trained comes back for the same step
    assert again is None or _results(filled.store) == kept
