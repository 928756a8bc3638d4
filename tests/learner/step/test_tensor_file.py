"""Files of tensors that are written one at a time."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from learner.step import tensor_file
from learner.step.tensor_file import Copies, host_copy, on_host, write_tensors

TENSORS = [
    ("first", torch.arange(6, dtype=torch.float32).view(2, 3).T),  # not contiguous
    ("half", torch.tensor([1.5, -2.0], dtype=torch.bfloat16)),
    ("bytes", torch.tensor([1, 2, 255], dtype=torch.uint8)),
    ("scalar", torch.tensor(7.0)),
    ("empty", torch.zeros(0, 4)),
]
SHAPES = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in TENSORS]


def test_safetensors_reads_back_what_was_written_one_at_a_time(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", SHAPES, iter(TENSORS))
    read = load_file(tmp_path / "file")
    assert read.keys() == {name for name, _ in TENSORS}
    for name, tensor in TENSORS:
        assert read[name].dtype == tensor.dtype and torch.equal(read[name], tensor), name


def test_tensors_that_come_in_another_order_or_are_too_few_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found half instead of first"):
        write_tensors(tmp_path / "file", SHAPES, TENSORS[1:])
    with pytest.raises(ValueError):
        write_tensors(tmp_path / "file", SHAPES, TENSORS[:-1])


@pytest.mark.parametrize(("free", "at_once"), [(1 << 40, False), (8, True)])
def test_copies_are_written_later_unless_memory_is_short(
    tmp_path: Path, free: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "free_memory", lambda: free)
    tensors = [("one", torch.ones(3)), ("two", torch.zeros(2, 2))]
    copies = Copies()
    copies.add(tmp_path / "file", [(n, t.dtype, tuple(t.shape)) for n, t in tensors], tensors)
    assert (tmp_path / "file").exists() == at_once
    tensors[0][1].fill_(9)
    copies.write()
    assert load_file(tmp_path / "file")["one"].tolist() == [1, 1, 1]


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
