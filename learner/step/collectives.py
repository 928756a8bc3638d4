"""Adds numbers over the ranks, and sends bytes from rank 0 to the others and back. Every rank must
call each of these functions. They send bytes, because torch would pickle objects."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from r3l.codec import RECORD_LIMIT, pack, unpack


def add_in_place(part: Tensor, device: torch.device) -> None:
    """Adds a tensor in the host's memory over all ranks. `device`: where the ranks communicate."""
    if not part.numel():
        return
    whole = part.to(device)
    torch.distributed.all_reduce(whole)
    part.copy_(whole)


def add(sums: Mapping[str, float], device: torch.device) -> dict[str, float]:
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


def broadcast(sent: bytes | None, device: torch.device) -> memoryview:
    """Sends bytes from rank 0, where `sent` is not None. Returns them on every rank."""
    length = torch.tensor([len(sent or b"")], dtype=torch.int64, device=device)
    torch.distributed.broadcast(length, src=0)
    values = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    if sent is not None:
        values = _bytes(sent).to(device)
    torch.distributed.broadcast(values, src=0)
    return memoryview(values.cpu().numpy()).toreadonly()


def broadcast_facts(facts: Mapping[str, Any] | None, device: torch.device) -> dict[str, Any]:
    """Returns rank 0's facts, plain values by name, on every rank. Other ranks give None."""
    sent = None if facts is None else pack(facts, RECORD_LIMIT)
    return unpack(broadcast(sent, device), RECORD_LIMIT)


def scatter(parts: Sequence[bytes] | None, device: torch.device) -> memoryview:
    """Sends each rank its own part. `parts`: one for each rank, on rank 0; else None. Every part
    takes the time and the memory of the longest one."""
    longest = None if parts is None else {"size": max(map(len, parts))}
    size = broadcast_facts(longest, device)["size"]
    own = torch.empty(size, dtype=torch.uint8, device=device)
    sent = None
    if parts is not None:
        sent = [_bytes(part.ljust(size, b"\0")).to(device) for part in parts]
    torch.distributed.scatter(own, sent, src=0)
    return memoryview(own.cpu().numpy()).toreadonly()


def gather(own: bytes, device: torch.device) -> list[bytes]:
    """Returns every rank's bytes on rank 0, and nothing on the other ranks."""
    sizes = [int(size) for size in _gathered(torch.tensor([len(own)]), device)]
    padded = _bytes(own.ljust(max(sizes), b"\0")).to(device)
    leads = torch.distributed.get_rank() == 0
    found = [torch.empty_like(padded) for _ in sizes] if leads else None
    torch.distributed.gather(padded, found, dst=0)
    pairs = zip(found or (), sizes, strict=False)
    return [each[:size].cpu().numpy().tobytes() for each, size in pairs]


def _bytes(data: bytes) -> Tensor:
    """Returns bytes as a tensor, which PyTorch wants to be writable."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte()


def _gathered(own: Tensor, device: torch.device) -> list[Tensor]:
    """Returns the tensors of all ranks, which have one shape."""
    sent = own.to(device)
    found = [torch.empty_like(sent) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, sent)
    return [each.cpu() for each in found]
