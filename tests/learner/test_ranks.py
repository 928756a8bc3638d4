"""Other ranks learn which batch rank 0 has drawn. The process group is played: what rank 0
broadcasts is what rank 1 receives, in the same order, shapes and formats."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from buffer import Draw
from buffer.storage.stored_rows import DrawRow, Status
from learner.ranks import receive_draw, share_draw
from r3l.codec import encode
from r3l.records import Recalled
from tests.r3l.training.fakes import explore_group

GROUPS = [explore_group((0.0, 1.0), (1.0, None), group_id=f"g{i}", seed=i) for i in range(3)]


def draw_of(records: list[bytes]) -> Draw:
    names = tuple(group.group_id for group in GROUPS)
    row = DrawRow(7, "r", "learner", 3, names, "fifo", 1.5, weights=(0.25, 1.0, 50.0))
    return Draw.read(row, (Status("drawn", "", {}),) * 3, records)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What rank 0 has sent and rank 1 has not received."""
    sent: list[torch.Tensor] = []

    def broadcast(tensor: torch.Tensor, src: int) -> None:
        if broadcast.sending:
            sent.append(tensor.clone())
            return
        value = sent.pop(0)
        assert (tensor.shape, tensor.dtype) == (value.shape, value.dtype)
        tensor.copy_(value)

    def all_reduce(tensor: torch.Tensor) -> None:
        broadcast.sending = bool(tensor.item())  # only rank 0 sends a signal
        broadcast(tensor, 0)

    monkeypatch.setattr(torch.distributed, "broadcast", broadcast)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    return sent


def rank(number: int) -> Any:
    return SimpleNamespace(rank=number, world=2, device=torch.device("cpu"))


def test_every_rank_knows_which_batch_was_drawn_and_only_rank_0_has_its_groups(
    sent: list[torch.Tensor],
) -> None:
    joined = [Recalled(group.group_id, "g9", group.trajectories[0]) for group in GROUPS[:2]]
    drawn = draw_of([encode(one) for one in (*GROUPS, *joined)])
    own = share_draw(rank(0), drawn)
    assert sum(each.nbytes for each in sent) < 1000
    draw = receive_draw(rank(1))
    assert draw is not None and own is not None and not sent
    assert draw.row == own.row == drawn.row and draw.row.groups == ("g0", "g1", "g2")
    assert (draw.groups, draw.recalled, draw.records, own.records) == ([], [], (), ())
    assert [encode(group) for group in own.groups] == [
        encode(replace(group, state="drawn", times={})) for group in GROUPS
    ]
    assert [encode(one) for one in own.recalled] == [encode(one) for one in joined]


def test_without_a_draw_every_rank_stops(sent: list[torch.Tensor]) -> None:
    share_draw(rank(0), None)
    assert receive_draw(rank(1)) is None and not sent
