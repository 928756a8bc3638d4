"""The layout of a weight set in chunks, and its manifest on the wire."""

import numpy as np
import pytest

from r3l.errors import WeightsError
from r3l.weights.chunks import assemble
from r3l.weights.manifest import (
    CHUNK_BYTES,
    Layout,
    Manifest,
    digest_of,
    fingerprint,
    fingerprints_agree,
)


def test_a_manifest_with_a_tensor_outside_the_set_is_refused() -> None:
    layout = Layout.of([("a", "float32", (4,))])
    wire = Manifest("p", 1, layout, (0,)).to_wire()
    assert Manifest.from_wire(wire) == Manifest("p", 1, layout, (0,))
    wire["layout"]["tensors"][0]["offset"] = 1 << 20
    with pytest.raises(WeightsError, match="outside"):
        Manifest.from_wire(wire)
    with pytest.raises(WeightsError, match="malformed"):
        Manifest.from_wire({"version": 1})


def test_chunks_are_cut_by_the_manifest_whatever_the_sizes_of_tensors() -> None:
    sizes = [CHUNK_BYTES // 2, 3, 0, CHUNK_BYTES // 2 - 64, 2 * CHUNK_BYTES + 100, 1]
    layout = Layout.of((str(i), "bfloat16", (size // 2,)) for i, size in enumerate(sizes))
    parts = [np.random.default_rng(i).integers(0, 256, t.nbytes, dtype=np.uint8)
             for i, t in enumerate(layout.tensors)]  # fmt: skip
    chunks = list(layout.cut(parts))
    assert len(chunks) == layout.num_chunks
    for index, pieces in enumerate(chunks):
        ends = [0, *(at + len(piece) for at, piece in pieces)]
        assert ends == sorted(ends) and ends[-1] <= len(
            range(layout.total_bytes)[layout.span(index)]
        )
    sizes = [len(range(layout.total_bytes)[layout.span(i)]) for i in range(len(chunks))]
    whole = np.concatenate([assemble(*chunk) for chunk in zip(chunks, sizes, strict=True)])
    for entry, part in zip(layout.tensors, parts, strict=True):
        assert np.array_equal(whole[entry.offset : entry.offset + entry.nbytes], part)


def test_tensors_are_aligned_and_patches_see_elements_of_the_narrowest_type() -> None:
    layout = Layout.of([("a", "float32", (3,)), ("b", "bfloat16", (5, 7)), ("c", "float32", ())])
    assert [tensor.offset for tensor in layout.tensors] == [0, 64, 192]
    assert [tensor.nbytes for tensor in layout.tensors] == [12, 70, 4]
    assert (layout.total_bytes, layout.num_chunks, layout.width) == (256, 1, 2)


def test_a_fingerprint_names_the_published_set_of_any_publisher() -> None:
    layout = Layout.of([("a", "bfloat16", (3,))])
    first = fingerprint("e1", Manifest("p", 1, layout, (7,)))
    assert first.startswith("e1/") and len(digest_of(first)) == 32
    assert fingerprint("e1", Manifest("q", 2, layout, (7,), (1, 1))) == first
    assert fingerprint("e1", Manifest("p", 1, layout, (8,))) != first
    assert fingerprint("e1", Manifest("p", 1, Layout.of([("b", "bfloat16", (3,))]), (7,))) != first
    assert digest_of("e1") == ""


def test_fingerprints_contradict_each_other_if_a_part_that_both_have_differs() -> None:
    assert (
        fingerprints_agree("e1/s", "e1/s")
        and fingerprints_agree("e1", "e1/s")
        and fingerprints_agree("e1/s", "e1")
    )
    assert not fingerprints_agree("e1/s", "e2/s")
    assert not fingerprints_agree("e1/s", "e1/t")
