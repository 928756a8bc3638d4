"""What the groups of a real step did to it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from learner.cli import main
from learner.offline import influence
from learner.offline import trainer_snapshot as snapshot
from learner.offline.replayed_run import ReplayedRun

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def replayed(ended: Path) -> Iterator[ReplayedRun]:
    """Before step 4 of the run."""
    found = ReplayedRun(ended, 4)
    yield found
    found.close()


def test_a_step_is_tried_without_a_group_and_the_step_itself_is_as_before(
    replayed: ReplayedRun,
) -> None:
    start = snapshot.flat_weights(replayed.trainer)
    [first, *_] = [group.group_id for group in replayed.draw_of(4).groups]
    effect = influence.effect_of(replayed, first)
    assert (snapshot.flat_weights(replayed.trainer) == start).all()
    assert effect.loss == replayed.lines[4]["learner/loss"] != effect.loss_without
    assert 0 < effect.difference < effect.moved + effect.moved_without
    # |a − b|² = |a|² + |b|² − 2 |a||b| cos
    squares = effect.moved**2 + effect.moved_without**2 - effect.difference**2
    cosine = squares / (2 * effect.moved * effect.moved_without)
    assert effect.cosine == pytest.approx(cosine, abs=1e-6) and -1 < effect.along < 1
    assert first in effect.lines(first)[0]


def test_the_shares_of_a_steps_groups_sum_to_one(replayed: ReplayedRun) -> None:
    found = influence.blame(replayed)
    assert sum(one.share for one in found) == pytest.approx(1, abs=1e-5)
    assert [one.share for one in found] == sorted((one.share for one in found), reverse=True)
    names = sorted(one.group.group_id for one in found)
    assert names == [group.group_id for group in replayed.draw_of(4).groups]
    norm = replayed.lines[4]["learner/grad_norm"]
    for one in found:
        assert one.share * norm == pytest.approx(one.cosine * one.norm, rel=1e-3)


def test_the_commands_print_both(ended: Path, tmp_path: Path) -> None:
    run = shutil.copytree(ended, tmp_path / "run")  # LMDB opens no file twice in one process
    done = CliRunner().invoke(main, ["blame", str(run), "4"], catch_exceptions=False)
    assert done.exit_code == 0 and "share  cosine" in done.stdout
    first = done.stdout.splitlines()[-1].split()[4]
    command = ["replay", str(run), "4", "--without", first]
    done = CliRunner().invoke(main, command, catch_exceptions=False)
    assert done.exit_code == 0 and f"without {first}: loss " in done.output
    assert "weights of the journal same" in done.output
