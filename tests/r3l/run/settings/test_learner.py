"""Settings of the learner: when it saves and publishes, its adapters."""

import pytest

from r3l.run.config import load
from r3l.run.settings.learner import LearnerConfig, LoraConfig


@pytest.mark.parametrize(
    ("every", "saved"),
    [(50, [5, 10, 20, 50, 100]), (10, [1, 2, 4, *range(10, 121, 10)]), (60, [6, 12, 24, 60, 120])],
)
def test_the_first_checkpoints_are_made_early(every: int, saved: list[int]) -> None:
    learner = LearnerConfig(checkpoint_every=every)
    assert [version for version in range(121) if version and learner.saves(version)] == saved
    learner = LearnerConfig(checkpoint_every=3)
    assert [version for version in range(1, 9) if learner.saves(version)] == [3, 6]


def test_weights_are_published_at_every_sync_and_after_the_last_step() -> None:
    learner = LearnerConfig(publish_every=4, steps=10)
    assert [version for version in range(11) if learner.publishes(version)] == [0, 4, 8, 10]


def test_adapters_learn_ten_times_as_fast_unless_a_rate_is_given() -> None:
    adapters = LoraConfig(rank=4)
    assert (LearnerConfig().lr, LearnerConfig(lora=adapters).lr) == (1e-6, 1e-5)
    assert LearnerConfig(lora=adapters, lr=1e-6).lr == 1e-6
    assert load(None, ["learner.lora={rank: 4}"]).learner.lr == 1e-5


def test_targets_without_a_rank_are_refused_since_all_weights_would_be_trained() -> None:
    assert LoraConfig().rank == 0 and LoraConfig(rank=2, targets=("q_proj",)).targets
    with pytest.raises(ValueError, match="targets is set"):
        LoraConfig(targets=("q_proj",))
