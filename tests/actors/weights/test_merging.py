"""Adapters that are published alone, merged into the base model as the learner merges them."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.weights.merging import Merger
from actors.weights.staging import StagedWeights, staged_tensors
from learner.publishing.publisher import WeightPublisher
from learner.step import full_weights
from learner.step.adapters import prepare, published_apart
from r3l.errors import UserError
from r3l.run.settings.learner import LoraConfig
from r3l.training.model import load_model
from r3l.weights.journal import Journal
from r3l.weights.manifest import Manifest
from tests.r3l.training.fakes import tiny_folder

Published = list[dict[str, torch.Tensor]]


def adapted(model: Path, dtype: torch.dtype) -> Any:
    lora = LoraConfig(rank=4, alpha=8, targets=("q_proj", "down_proj"))
    return load_model(model, dtype, adapt=partial(prepare, lora=lora, base=model)).lm


def published(lm: Any, model: Path, folder: Path) -> Published:
    """Versions 1 and 2 in a journal, each with other adapters; the whole weights of both."""
    serving = WeightPublisher("tcp://127.0.0.1:0", journal=Journal(folder, versions=9))
    whole, said = Published(), published_apart(lm, model)
    assert said is not None
    for version in (1, 2):
        with torch.no_grad():
            for name, parameter in lm.named_parameters():
                if "lora_B" in name:
                    parameter.add_(0.01 * torch.randn(parameter.shape))
        apart = full_weights.of_adapters(lm)
        tensors, shapes = full_weights.tensors(apart), full_weights.shapes(apart)
        serving.publish(version, tensors, None, shapes, said)
        whole.append(
            {name: tensor.clone() for name, tensor in full_weights.tensors(full_weights.whole(lm))}
        )
    serving.close()
    return whole


def staged(folder: Path, version: int) -> tuple[StagedWeights, Manifest]:
    """A version of a journal, staged as an actor does."""
    manifest, data = Journal(folder).rebuild(version)
    staged = StagedWeights(manifest.layout, manifest.origin)
    for index in range(manifest.layout.num_chunks):
        staged.replace(index, manifest, data[manifest.layout.span(index)].data)
    return staged, manifest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_set_has_the_bytes_of_the_learners_weights(tmp_path: Path, dtype: str) -> None:
    model = tiny_folder(tmp_path / "model")
    lm = adapted(model, getattr(torch, dtype))
    versions = published(lm, model, tmp_path / "journal")
    merger = Merger(model)
    for version, weights in enumerate(versions, start=1):
        adapters, manifest = staged(tmp_path / "journal", version)
        assert manifest.layout.total_bytes < sum(t.nbytes for t in weights.values()) / 4
        path, whole = merger.whole(adapters.path, manifest)
        held = dict(staged_tensors(path, whole.layout))
        assert held.keys() >= weights.keys() and whole.version == version
        assert all(torch.equal(held[name], tensor) for name, tensor in weights.items())
        serving = WeightPublisher("tcp://127.0.0.1:0")
        serving.publish(version, held.items())
        assert serving._manifest is not None and whole.sums == serving._manifest.sums
        serving.close()
        adapters.close()
    assert merger.whole(path, whole) == (path, whole)  # whole sets pass unchanged
    merger.close()


def test_adapters_of_another_base_model_are_refused(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    published(adapted(model, torch.float32), model, tmp_path / "journal")
    adapters, manifest = staged(tmp_path / "journal", 1)
    other = tiny_folder(tmp_path / "other", hidden_size=32)
    with pytest.raises(UserError, match="another base model"):
        Merger(other).whole(adapters.path, manifest)
    adapters.close()
