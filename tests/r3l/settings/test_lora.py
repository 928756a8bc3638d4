"""Settings of adapters."""

import pytest

from r3l.settings.lora import LoraConfig


def test_targets_without_a_rank_are_refused_since_all_weights_would_be_trained() -> None:
    assert LoraConfig().rank == 0 and LoraConfig(rank=2, targets=("q_proj",)).targets
    with pytest.raises(ValueError, match="targets are given but no rank"):
        LoraConfig(targets=("q_proj",))
