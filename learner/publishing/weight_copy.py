"""Copies a version's weights, so that they can be published while the next step changes them.

The copy has the layout of the published set (r3l.weights.manifest). Its memory is allocated once
and used for every version. For weights on a GPU it is page-locked, which makes copying several
times as fast.
"""

import logging
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from learner.step.tensor_file import on_host
from r3l.run.process.memory import free_memory
from r3l.weights.manifest import Bytes, Layout, Piece

log = logging.getLogger(__name__)


class WeightCopy:
    """Holds one version of a weight set in the host's memory."""

    def __init__(self) -> None:
        self._data = torch.empty(0, dtype=torch.uint8)
        self._locked = False

    def take(self, layout: Layout, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copies `weights`, which must come in the order of `layout`, in the layout's dtypes.
        Overwrites the previous copy. Call `reserve` first."""
        for entry, (_, tensor) in zip(layout.tensors, weights, strict=True):
            dtype = getattr(torch, entry.dtype)
            place = self._data[entry.offset : entry.offset + entry.nbytes].view(dtype)
            given = tensor.detach()
            if given.is_cuda:
                given = given.to(dtype)  # the GPU converts faster
                given = given if self._locked else on_host(given)
            place.view(entry.shape).copy_(given)

    def reserve(self, size: int, *, of_gpu: bool) -> bool:
        """Returns whether there is memory for a set of `size` bytes. `of_gpu`: the weights are on a
        GPU."""
        if len(self._data) == size:
            return True
        self.close()
        if 2 * size > free_memory():
            return False
        self._data = torch.zeros(size, dtype=torch.uint8)  # bytes between tensors stay zero
        if of_gpu and size:
            # Not pin_memory, which rounds up to a power of two.
            error = torch.cuda.cudart().cudaHostRegister(self._data.data_ptr(), size, 0)
            self._locked = int(error) == 0
            if not self._locked:
                log.warning("weights: %d bytes could not be page-locked (%s), so copying them "
                            "takes longer", size, error)  # fmt: skip
        return True

    def pieces(self, layout: Layout) -> Iterator[list[Piece]]:
        """Yields the pieces of each chunk, one whole piece per chunk."""
        data: Bytes = self._data.numpy()
        for index in range(layout.num_chunks):
            yield [(0, data[layout.span(index)])]

    def close(self) -> None:
        """Frees the memory."""
        if self._locked:
            torch.cuda.cudart().cudaHostUnregister(self._data.data_ptr())
        self._data, self._locked = torch.empty(0, dtype=torch.uint8), False
