"""The idealised table policy: literal chances, and learning that goes the right way."""

import json

import numpy as np
import pytest

from lab import idealised
from lab.idealised import KNOWN, WORLDS, Table, World, grpo_step, predict, r3l_step
from lab.results.lines import LINES

PREDICTION = LINES / "prediction.json"


def test_base_success_is_the_chance_of_guessing_every_withheld_rule() -> None:
    # all 12 rules withheld, one of 3 stations in the note: two guesses among 4 tools
    assert World(3, 4, 12).base_success() == pytest.approx(KNOWN / 16)
    assert World(3, 4, 0).base_success() == pytest.approx(KNOWN**3)


def test_the_worlds_are_those_of_the_regime_map() -> None:
    bases = [world.base_success() for world in WORLDS]
    assert bases == pytest.approx([0.136, 0.0236, 0.0050, 0.0020, 0.00013], rel=0.04)


def test_played_attempts_succeed_as_often_as_the_enumeration_says() -> None:
    table = Table(World(5, 4, 6), seed=0)
    rows = table.rows(200_000)
    assert (table.play(rows) == 0).all(1).mean() == pytest.approx(
        table.world.base_success(), rel=0.03
    )
    assert table.success(200_000) == pytest.approx(table.world.base_success(), rel=0.03)


def test_both_methods_learn_and_count_what_they_sample() -> None:
    for step in (grpo_step, r3l_step):
        table = Table(World(5, 6, 4), seed=0)
        before = table.success()
        sampled = [step(table) for _ in range(40)]
        assert table.success() > before + 0.4
    assert grpo_step(table) == 128
    attempts, reflections = sampled[0]
    assert 64 < attempts < 128 and reflections == 64


def test_a_retry_is_taught_only_from_its_pivot_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idealised, "REFLECTS", 1.0)
    table = Table(World(6, 6, 12), seed=0)
    table.rows = lambda count: np.tile([0, 1, 2, 3, 4, 5], (count, 1))  # type: ignore[method-assign]
    wrong_at_second = np.array([[0, 1, 0, 0, 0, 0]])
    table.play = lambda items: np.broadcast_to(wrong_at_second, items.shape)  # type: ignore[method-assign]
    r3l_step(table)
    moved = np.abs(table.logits).sum(1) > 0
    assert not moved[0] and moved[1:6].all() and not moved[6:].any()


def test_the_prediction_on_disk_is_the_one_made_here() -> None:
    assert json.loads(PREDICTION.read_text()) == json.loads(
        json.dumps([predict(world) for world in WORLDS])
    )
