"""Trains low-rank adapters (LoRA, https://arxiv.org/abs/2106.09685) with peft. Where possible, only
the adapters are published.

    base W, frozen ─────┬─► forward: W x + alpha/rank · B A x
    adapter A, B ───────┴─► saved as a model: W + alpha/rank · B A
         └────────────────► trained, published, in checkpoints, saved in peft's format
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from r3l.errors import UserError
from r3l.models.model_folder import model_digest
from r3l.run.settings.learner import LoraConfig
from r3l.weights import low_rank
from r3l.weights.low_rank import PREFIX, base_files
from r3l.weights.manifest import Adapters

NAME = "default"  # peft's name of the only adapter
WEIGHTS = "adapter_model.safetensors"


def prepare(lm: Any, lora: LoraConfig, base: Path, saved: Path | None = None) -> None:
    """Adds the adapters of `lora`, if it has a rank. `saved`: folder of adapters to train
    further."""
    if lora.rank:
        add_adapters(lm, lora, base)
        if saved is not None:
            load_adapters(lm, saved)


def add_adapters(lm: Any, lora: LoraConfig, base: Path) -> None:
    """Adds adapters with B · A = 0, and freezes all other parameters. Raises UserError if a target
    layer cannot have an adapter."""
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model

    config = PeftConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=list(lora.targets) or "all-linear",
        base_model_name_or_path=str(base),
        task_type="CAUSAL_LM",
    )
    try:
        inject_adapter_in_model(config, lm, adapter_name=NAME)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"learner.lora.targets: peft cannot adapt them ({reason})") from None


def adapted_layers(lm: nn.Module) -> list[Any]:
    return [module for module in lm.modules() if hasattr(module, "lora_A")]


def is_adapter(name: str) -> bool:
    """Returns whether the parameter called `name` belongs to an adapter."""
    return ".lora_" in name


def base_name(name: str) -> str:
    """Returns a parameter's name in the base model's folder."""
    return name.replace(".base_layer.", ".")


def parts(layer: Any) -> tuple[nn.Parameter, nn.Parameter]:
    """Returns the matrices A and B of a layer's adapter."""
    return layer.lora_A[NAME].weight, layer.lora_B[NAME].weight


def merged(layer: Any) -> Tensor:
    """Merges a layer's base and adapter into one matrix."""
    a, b = (matrix.detach() for matrix in parts(layer))
    base = layer.base_layer.weight.detach()
    if layer.fan_in_fan_out:
        return low_rank.merged(base.T, a, b, layer.scaling[NAME]).T
    return low_rank.merged(base, a, b, layer.scaling[NAME])


def published_apart(lm: nn.Module, model: Path) -> Adapters | None:
    """Describes the adapters, so that the base need not be published. Returns None if that is
    impossible, for example because the scalings differ."""
    layers = adapted_layers(lm)
    names = {base_name(f"{n}.base_layer.weight") for n, m in lm.named_modules() if m in layers}
    scalings = {layer.scaling[NAME] for layer in layers}
    transposed = any(layer.fan_in_fan_out for layer in layers)
    if len(scalings) != 1 or transposed or not names <= base_files(model).keys():
        return None
    dtype = str(layers[0].base_layer.weight.dtype).removeprefix("torch.")
    return Adapters(model_digest(model), dtype, scalings.pop())


@contextmanager
def without_adapters(lm: nn.Module) -> Iterator[None]:
    """Turns the adapters off in a `with` block. Only for passes that need no gradient."""
    layers = adapted_layers(lm)
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def peft_name(name: str) -> str:
    """Returns the name of an adapter's parameter in peft's files."""
    return PREFIX + name.replace(f".{NAME}.", ".")


def load_adapters(lm: nn.Module, folder: Path) -> None:
    """Restores adapters that were saved from a model with the same targets and rank."""
    saved = load_file(folder / WEIGHTS)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if is_adapter(name):
                parameter.copy_(saved[peft_name(name)])
