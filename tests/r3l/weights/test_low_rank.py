"""Low-rank changes of a base model, by hand."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from r3l.weights.low_rank import adapted_names, base_files, base_tensors, merged, merged_into
from r3l.weights.manifest import Adapters, Layout, Manifest

BASE = {"x.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "y.bias": torch.tensor([5.0])}
ADAPTERS = {
    "base_model.model.x.lora_A.weight": torch.tensor([[1.0, -1.0]]),
    "base_model.model.x.lora_B.weight": torch.tensor([[0.5], [2.0]]),
}
MERGED = [[2.0, 1.0], [7.0, 0.0]]  # with the factor 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The base model in two files."""
    for name, tensor in BASE.items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    return tmp_path


def test_the_product_of_the_adapters_is_added_and_rounded_once(folder: Path) -> None:
    assert merged(BASE["x.weight"], *ADAPTERS.values(), 2.0).tolist() == MERGED
    for dtype in (torch.float32, torch.bfloat16):
        said = Adapters("", str(dtype).removeprefix("torch."), 2.0)
        whole = dict(merged_into(base_tensors(folder), ADAPTERS, said))
        assert {name: tensor.tolist() for name, tensor in whole.items()} == {
            "x.weight": MERGED,
            "y.bias": [5.0],
        }
        assert {tensor.dtype for tensor in whole.values()} == {dtype}


def test_a_folder_says_what_it_has_and_a_set_what_it_changes(folder: Path) -> None:
    assert base_files(folder) == {name: folder / f"{name}.safetensors" for name in BASE}
    assert [name for name, _ in base_tensors(folder, {"x.weight"})] == ["x.weight"]
    layout = Layout.of((name, "float32", tuple(t.shape)) for name, t in ADAPTERS.items())
    assert adapted_names(Manifest("", 0, layout, ())) == ["x.weight"]


def test_the_digest_of_adapters_covers_their_base() -> None:
    layout = Layout.of([("a", "float32", (1,))])
    sets = [
        Manifest("", 0, layout, (0,), None, adapters)
        for adapters in (None, Adapters("one", "float32", 2.0), Adapters("other", "float32", 2.0))
    ]
    assert len({one.digest for one in sets}) == 3
    assert [Manifest.from_wire(one.to_wire()) for one in sets] == sets
