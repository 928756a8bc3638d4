"""The layers of a model folder that can have an adapter, read without torch."""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import safe_open

from r3l.errors import UserError, did_you_mean
from r3l.settings.learner import LoraConfig

LINEAR = re.compile(r"\.\d+\.(?:.+\.)?(\w+)\.weight$")
"""The name of a matrix in one of a model's blocks, which are numbered."""


def linear_layers(folder: Path) -> list[str]:
    """Names of the linear layers in the blocks of a model folder, such as q_proj; empty if its
    weights are not in safetensors files."""
    found: dict[str, None] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118, it is not a mapping
                match = LINEAR.search(name)
                if match and len(file.get_slice(name).get_shape()) == 2:
                    found[match[1]] = None
    return sorted(found)


def check_targets(lora: LoraConfig, folder: Path) -> None:
    """Raise UserError for a target that the model has not."""
    known = linear_layers(folder)
    if not lora.rank or not known:
        return
    for target in lora.targets:
        if target not in known:
            raise UserError(
                f"learner.lora.targets: the model has no layer {target!r:.80}"
                f"{did_you_mean(target, known)}; its linear layers are {', '.join(known)}"
            )
