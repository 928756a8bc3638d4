"""Writes safetensors files tensor by tensor, so that not all tensors are in memory at once.

The format (https://huggingface.co/docs/safetensors): the header's length in 8 bytes, the header,
the tensors' bytes. The header is JSON with each tensor's dtype, shape, start and end.

A GPU copies to ordinary memory page by page, which is slow. So tensors on a GPU are copied through
page-locked memory, one piece after the other.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from r3l.run.process.memory import free_memory

Shape = tuple[str, torch.dtype, tuple[int, ...]]
"""Name, dtype and shape of a tensor."""
Tensors = Iterable[tuple[str, Tensor]]
"""Names and tensors; a tensor may be dropped once the next one is produced."""
Write = Callable[[Path, Sequence[Shape], Tensors], None]
"""Writes a file of tensors, which come in the order of their shapes."""
DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8"}
ALIGNMENT = 8  # of the first tensor's bytes
PIECE = 64 << 20
"""Bytes of page-locked memory that are in use at a time."""


def drain(tensors: Iterable[object]) -> None:
    """Exhausts an iterator of tensors. Every rank must exhaust its iterator, because a tensor is
    gathered by all ranks together."""
    for _ in tensors:
        pass


def write_tensors(path: Path, shapes: Sequence[Shape], tensors: Tensors) -> None:
    """Writes a file of tensors, which must come in the order of `shapes`."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in shapes:
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, dtype, shape), (its_name, tensor) in zip(shapes, tensors, strict=True):
            if (name, dtype, shape) != (its_name, tensor.dtype, tuple(tensor.shape)):
                raise ValueError(f"{path.name}: found {its_name} instead of {name}")
            flat = on_host(tensor).contiguous().view(-1)
            file.write(flat.view(torch.uint8).numpy().data)


class Copies:
    """Copies tensors to the host's memory. The copies can be written to files later, while the next
    step changes the tensors."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, Sequence[Shape], Tensors]] = []

    def add(self, path: Path, shapes: Sequence[Shape], tensors: Tensors) -> None:
        """Copies a file's tensors for `write`, or writes the file at once if free memory is
        short."""
        size = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in shapes)
        if 2 * size > free_memory():
            write_tensors(path, shapes, tensors)
            return
        copies = [(name, host_copy(tensor)) for name, tensor in tensors]
        self._files.append((path, shapes, copies))

    def write(self) -> None:
        while self._files:
            write_tensors(*self._files.pop(0))


def on_host(tensor: Tensor) -> Tensor:
    """Returns the tensor itself if it is in the host's memory, otherwise a copy in that memory."""
    return tensor.detach() if tensor.device.type == "cpu" else host_copy(tensor)


def host_copy(tensor: Tensor, piece: int = PIECE) -> Tensor:
    """Copies a tensor to new memory of the host, `piece` bytes at a time."""
    given = tensor.detach().contiguous().view(-1).view(torch.uint8)
    whole = torch.empty(len(given), dtype=torch.uint8)
    # PyTorch keeps page-locked memory for the next call.
    staged = torch.empty(min(piece, len(given)), dtype=torch.uint8, pin_memory=given.is_cuda)
    for at in range(0, len(given), piece):
        part = given[at : at + piece]
        whole[at : at + piece] = staged[: len(part)].copy_(part)
    return whole.view(tensor.dtype).view(tensor.shape)
