"""Finds the layers of a model folder that can have an adapter. Needs no torch."""

import re
from pathlib import Path

from safetensors import safe_open

from r3l.errors import UserError, did_you_mean
from r3l.run.settings.learner import LoraConfig

LINEAR = re.compile(r"\.\d+\.(?:.+\.)?(\w+)\.weight$")
"""The name of a matrix in one of a model's numbered blocks."""


def linear_layers(folder: Path) -> list[str]:
    """Returns the names of the linear layers in a model's blocks, such as q_proj. Reads only
    the safetensors files."""
    names = set[str]()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118, it is not a mapping
                match = LINEAR.search(name)
                if match and len(file.get_slice(name).get_shape()) == 2:
                    names.add(match[1])
    return sorted(names)


def check_targets(lora: LoraConfig, folder: Path) -> None:
    """Raises UserError if the model lacks a layer that `lora` targets."""
    known = linear_layers(folder)
    if not lora.rank or not known:
        return
    for target in lora.targets:
        if target not in known:
            raise UserError(
                f"learner.lora.targets: the model has no layer {target!r:.80}"
                f"{did_you_mean(target, known)}; its linear layers are {', '.join(known)}"
            )
