"""Copies to the host's memory: bit for bit, of any shape and format, in any number of pieces."""

import pytest
import torch

from learner.step.host_memory import host_copy, on_host


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5)])
def test_a_copy_has_the_same_bits_and_memory_of_its_own(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.arange(1, 16).to(dtype)[: torch.Size(shape).numel()].view(shape)
    for piece in (8, 16, 1 << 20):
        copy = host_copy(tensor, piece)
        assert copy.dtype == dtype and copy.shape == tensor.shape and torch.equal(copy, tensor)
        copy.add_(1)
        assert not copy.numel() or not torch.equal(copy, tensor)


def test_a_transposed_tensor_is_copied_in_its_own_order() -> None:
    tensor = torch.arange(6.0).view(2, 3).T
    assert torch.equal(host_copy(tensor, 4), tensor)


def test_a_tensor_in_the_hosts_memory_is_not_copied() -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert on_host(tensor).data_ptr() == tensor.data_ptr() and not on_host(tensor).requires_grad
