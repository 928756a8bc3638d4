"""Adds numbers over the ranks. Every rank must call each of these functions."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def add_in_place(part: Tensor, device: torch.device) -> None:
    """Adds a tensor in the host's memory over all ranks. `device`: where the ranks communicate."""
    if not part.numel():
        return
    whole = part.to(device)
    torch.distributed.all_reduce(whole)
    part.copy_(whole)


def added(sums: Mapping[str, float], device: torch.device) -> dict[str, float]:
    """Adds named numbers over all ranks. A rank may lack some of the names."""
    names = names_of_all(sums, device)
    values = torch.tensor([sums.get(name, 0.0) for name in names], dtype=torch.float64)
    add_in_place(values, device)
    return dict(zip(names, values.tolist(), strict=True))


def any_of(fact: bool, device: torch.device) -> bool:
    """Returns whether `fact` is true on any rank."""
    count = torch.tensor([float(fact)])
    add_in_place(count, device)
    return bool(count[0] > 0)


def names_of_all(names: Iterable[str], device: torch.device) -> list[str]:
    """Returns the names that any rank has, sorted. They must not hold line breaks."""
    text = "".join(f"{name}\n" for name in sorted(names)) or "\n"
    own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    longest = max(int(size) for size in _gathered(torch.tensor([len(own)]), device))
    padded = torch.full((longest,), ord("\n"), dtype=torch.uint8)
    padded[: len(own)] = own
    texts = [bytes(each.tolist()).decode() for each in _gathered(padded, device)]
    return sorted({name for text in texts for name in text.split("\n") if name})


def _gathered(own: Tensor, device: torch.device) -> list[Tensor]:
    """Returns the tensors of all ranks, which have one shape."""
    sent = own.to(device)
    found = [torch.empty_like(sent) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, sent)
    return [each.cpu() for each in found]
