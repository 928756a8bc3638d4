"""The copy of the weights that is published while the next step changes them."""

import numpy as np
import pytest
import torch

from learner.publishing import weight_copy
from learner.publishing.weight_copy import WeightCopy
from r3l.weights.chunks import assemble
from r3l.weights.manifest import CHUNK_BYTES, Layout


def layout_of(tensors: list[tuple[str, torch.Tensor]], dtype: str = "") -> Layout:
    return Layout.of(
        (name, dtype or str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors
    )


def cut_directly(layout: Layout, tensors: list[tuple[str, torch.Tensor]]) -> list[bytes]:
    """The chunks of the tensors themselves."""
    data = (t.contiguous().view(-1).view(torch.uint8).numpy() for _, t in tensors)
    sizes = (layout.span(i).stop - layout.span(i).start for i in range(layout.num_chunks))
    cut = zip(layout.cut(data), sizes, strict=True)
    return [assemble(pieces, size).tobytes() for pieces, size in cut]


def copied(copy: WeightCopy, layout: Layout) -> list[bytes]:
    return [data.tobytes() for [(_, data)] in copy.pieces(layout)]


def test_a_copy_has_the_bytes_of_the_set_and_keeps_them_when_the_weights_change() -> None:
    torch.manual_seed(0)
    tensors = [
        ("a", torch.randn(CHUNK_BYTES // 4 + 7)),
        ("turned", torch.randn(5, 3).T),
        ("empty", torch.ones(0)),
        ("b", torch.randn(33).bfloat16()),
    ]
    layout, copy = layout_of(tensors), WeightCopy()
    expected = cut_directly(layout, tensors)
    assert copy.reserve(layout.total_bytes, of_gpu=False)
    copy.take(layout, tensors)
    for _, tensor in tensors:
        tensor.zero_()
    assert copied(copy, layout) == expected and len(expected) == 2
    copy.take(layout, tensors)
    assert not np.frombuffer(b"".join(copied(copy, layout)), np.uint8).any()


def test_a_copy_is_rounded_as_the_published_set_is() -> None:
    tensors = [("a", torch.randn(1000))]
    layout, copy = layout_of(tensors, "bfloat16"), WeightCopy()
    assert copy.reserve(layout.total_bytes, of_gpu=False)
    copy.take(layout, tensors)
    rounded = [(name, tensor.bfloat16()) for name, tensor in tensors]
    assert copied(copy, layout) == cut_directly(layout, rounded)


def test_there_is_no_copy_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_copy, "free_memory", lambda: 1999)
    copy = WeightCopy()
    assert not copy.reserve(1000, of_gpu=False) and copy.reserve(999, of_gpu=False)
    monkeypatch.setattr(weight_copy, "free_memory", lambda: 0)
    assert copy.reserve(999, of_gpu=False)  # it has it already


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("locked", [True, False])
def test_weights_on_a_gpu_arrive_as_they_are(locked: bool) -> None:
    tensors = [("a", torch.randn(1_000_003)), ("b", torch.randn(7))]
    layout, copy = layout_of(tensors, "bfloat16"), WeightCopy()
    assert copy.reserve(layout.total_bytes, of_gpu=locked)
    copy.take(layout, [(name, tensor.cuda()) for name, tensor in tensors])
    rounded = [(name, tensor.bfloat16()) for name, tensor in tensors]
    assert copied(copy, layout) == cut_directly(layout, rounded)
    copy.close()
