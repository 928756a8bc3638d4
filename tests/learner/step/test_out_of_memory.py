"""Memory that runs out: recognised, and answered with a smaller token budget."""

import pytest
import torch

from learner.step.out_of_memory import (
    is_out_of_memory,
    smaller_budget,
)
from r3l.errors import TrainingStopped


def test_the_budget_is_halved_until_it_is_the_longest_sequence() -> None:
    assert smaller_budget(8192, 300) == 4096 and smaller_budget(512, 300) == 300
    with pytest.raises(TrainingStopped, match="longest sequence 300 tokens"):
        smaller_budget(300, 300)


def test_a_failed_allocation_is_told_apart_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
