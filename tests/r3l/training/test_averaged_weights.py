"""The running average of the weights."""

import pytest
import torch
from torch import nn

from r3l.training.averaged_weights import AveragedWeights


def test_the_average_follows_the_weights_and_takes_their_place_only_in_the_block() -> None:
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    average = AveragedWeights(layer.named_parameters(), decay=0.75)
    layer.weight.data.fill_(5.0)
    average.update()  # 0.75 · 1 + 0.25 · 5
    layer.weight.data.fill_(9.0)
    average.update()  # 0.75 · 2 + 0.25 · 9
    with average.in_place():
        assert layer(torch.ones(1, 1)).item() == pytest.approx(3.75)
    assert layer(torch.ones(1, 1)).item() == 9.0
    other = AveragedWeights(layer.named_parameters(), decay=0.75)
    other.load(average.means)
    assert other.means["weight"].item() == pytest.approx(3.75)


def test_the_weights_come_back_after_an_error() -> None:
    layer = nn.Linear(1, 1)
    average, before = AveragedWeights(layer.named_parameters()), layer.weight.data
    with pytest.raises(ZeroDivisionError), average.in_place():
        raise ZeroDivisionError
    assert layer.weight.data is before or torch.equal(layer.weight.data, before)


def test_small_steps_of_half_precision_weights_are_not_lost_and_frozen_ones_are_left_out() -> None:
    layer = nn.Linear(1, 1).bfloat16()
    layer.weight.data.fill_(1.0)
    layer.bias.requires_grad_(False)
    average = AveragedWeights(layer.named_parameters(), decay=0.999)
    layer.weight.data.fill_(1.5)
    for _ in range(100):
        average.update()
    assert list(average.means) == ["weight"]
    assert average.means["weight"].item() == pytest.approx(1.5 - 0.5 * 0.999**100, rel=1e-5)
    with average.in_place():
        assert layer.weight.dtype == torch.bfloat16
