"""What rank 0 draws reaches the other ranks. The process group is played: what rank 0 broadcasts
is what rank 1 receives, in the same order, shapes and formats."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from learner.ranks import share_groups
from r3l.codec import encode
from tests.learner.groups import explore_group

GROUPS = [explore_group((0.0, 1.0), (1.0, None), group_id=f"g{i}", seed=i) for i in range(3)]


@pytest.mark.parametrize(("groups", "weights"), [(GROUPS, [0.25, 1.0, 50.0]), ([], [])])
def test_every_rank_has_the_groups_and_the_weights_that_rank_0_drew(
    monkeypatch: pytest.MonkeyPatch, groups: list, weights: list[float]
) -> None:
    sent: list[torch.Tensor] = []

    def send(tensor: torch.Tensor, src: int) -> None:
        sent.append(tensor.clone())

    def receive(tensor: torch.Tensor, src: int) -> None:
        value = sent.pop(0)
        assert (tensor.shape, tensor.dtype) == (value.shape, value.dtype)
        tensor.copy_(value)

    def rank(number: int) -> Any:
        return SimpleNamespace(rank=number, world=2, device=torch.device("cpu"))

    monkeypatch.setattr(torch.distributed, "broadcast", send)
    assert share_groups(rank(0), groups, weights) == (groups, weights)
    monkeypatch.setattr(torch.distributed, "broadcast", receive)
    received, shared = share_groups(rank(1), (), ())
    assert [encode(group) for group in received] == [encode(group) for group in groups]
    assert list(shared) == weights and not sent
