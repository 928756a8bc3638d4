"""Low-rank adapters. Every process already has the base model. Tensors are named as in peft.

base_model.model.<layer>.lora_A.weight  [rank, in] ─┬─► <layer>.weight + scaling · B A
base_model.model.<layer>.lora_B.weight  [out, rank] ┘
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from r3l.errors import UserError
from r3l.models.model_folder import model_digest
from r3l.weights.manifest import Adapters, Manifest

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "base_model.model."
A, B = ".lora_A.weight", ".lora_B.weight"


def adapted_names(manifest: Manifest) -> list[str]:
    """Returns the names of the base model's matrices that have adapters in a weight set."""
    names = [entry.name for entry in manifest.layout.tensors if entry.name.endswith(A)]
    return [name.removeprefix(PREFIX).removesuffix(A) + ".weight" for name in names]


def merged(base: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """Computes base + scaling · B A in float32, rounded once to the base's dtype."""
    return (base.float() + (b.float() @ a.float()) * scaling).to(base.dtype)


def check_base(manifest: Manifest, model: Path) -> None:
    """Raises UserError unless a set's adapters belong to the model in this folder."""
    if manifest.adapters and manifest.adapters.base != model_digest(model):
        raise UserError(
            f"model {model}: the learner's adapters belong to another base model; give the "
            "base model that the run began with"
        )


def base_files(model: Path) -> dict[str, Path]:
    """Maps the name of each tensor in a model folder to its safetensors file."""
    from safetensors import safe_open

    files: dict[str, Path] = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            files |= dict.fromkeys(file.keys(), path)
    return files


def base_tensors(model: Path, names: set[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors of a model folder: all of them, or only those in `names`."""
    from safetensors import safe_open

    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                if names is None or name in names:
                    yield name, file.get_tensor(name)


def merged_into(
    base: Iterable[tuple[str, Tensor]], tensors: Mapping[str, Tensor], adapters: Adapters
) -> Iterator[tuple[str, Tensor]]:
    """Yields a base model's tensors in the learner's dtype, merged with the adapters in
    `tensors`."""
    import torch

    for name, tensor in base:
        layer = PREFIX + name.removesuffix(".weight")
        a, b = tensors.get(layer + A), tensors.get(layer + B)
        own = tensor.to(getattr(torch, adapters.dtype))
        yield name, own if a is None or b is None else merged(own, a, b, adapters.scaling)
