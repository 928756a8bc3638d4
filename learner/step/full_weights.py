"""Gathers and saves a model's whole weights, one parameter at a time. Under ZeRO 3, the whole model
may not fit on one device."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from learner.step import adapters
from learner.step.tensor_file import Shape, Write, drain, write_tensors

WEIGHTS = "model.safetensors"


class Stored(NamedTuple):
    """A parameter to store under `name`. If `layer` is set, the layer's adapter is merged into the
    stored tensor."""

    name: str
    parameter: nn.Parameter
    layer: Any = None


def whole(lm: nn.Module) -> list[Stored]:
    """Lists the tensors to store in a plain model folder. Tied parameters appear once."""
    layers = {layer.base_layer.weight: layer for layer in adapters.adapted_layers(lm)}
    return [
        Stored(adapters.base_name(name), parameter, layers.get(parameter))
        for name, parameter in lm.named_parameters()
        if not adapters.is_adapter(name)
    ]


def of_adapters(lm: nn.Module) -> list[Stored]:
    """Lists the matrices of the adapters, under the names that peft gives them."""
    named = [(name, p) for name, p in lm.named_parameters() if adapters.is_adapter(name)]
    return [Stored(adapters.peft_name(name), parameter) for name, parameter in named]


def shapes(stored: Iterable[Stored]) -> list[Shape]:
    """Returns (name, dtype, shape) of every tensor."""
    return [(name, p.dtype, full_shape(p)) for name, p, _ in stored]


def tensors(stored: Iterable[Stored]) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) pairs. Under ZeRO 3, every rank must exhaust the iterator."""
    for name, parameter, layer in stored:
        with gather(parameter, *(adapters.parts(layer) if layer else ())):
            # Gathering a sharded parameter again takes new memory, so this tensor stays valid.
            tensor = adapters.merged(layer) if layer else parameter.detach()
        yield name, tensor


@contextmanager
def gather(*parameters: nn.Parameter) -> Iterator[None]:
    """Makes parameters whole inside the block. Under ZeRO 3, every rank must enter the block."""
    import deepspeed

    sharded = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    with deepspeed.zero.GatheredParameters(sharded, enabled=bool(sharded)):
        yield


def save_model(lm: Any, folder: Path, write: Write | None = write_tensors) -> None:
    """Writes a plain Hugging Face model folder, or nothing if `write` is None. Under ZeRO 3, every
    rank must call this function."""
    stored = whole(lm)
    each = tensors(stored)
    try:
        if write is None:
            return
        if getattr(lm, "_weight_conversions", None):
            # Files hold merged or split parameters; transformers makes them from all parameters.
            on_host = {name: tensor.to("cpu").contiguous() for name, tensor in each}
            lm.save_pretrained(folder, state_dict=on_host)
            return
        lm.save_pretrained(folder, state_dict={})  # all but the weights
        write(folder / WEIGHTS, shapes(stored), each)
    finally:
        drain(each)


def save_adapters(lm: Any, folder: Path, write: Write | None = write_tensors) -> None:
    """Like `save_model`, but writes only the adapters, in peft's format."""
    stored = of_adapters(lm)
    each = tensors(stored)
    try:
        if write is not None:
            lm.peft_config[adapters.NAME].save_pretrained(str(folder))
            write(folder / adapters.WEIGHTS, shapes(stored), each)
    finally:
        drain(each)


def full_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """Returns the full shape of a parameter, even if this rank holds only a share of it."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def shard(module: nn.Module, settings: Mapping[str, Any]) -> None:
    """Shards a module over the ranks for ZeRO 3. Unlike `deepspeed.initialize`, this never moves
    the whole module to a device."""
    import deepspeed

    deepspeed.zero.Init(module=module, config_dict_or_path=dict(settings))


def shard_frozen(module: nn.Module, settings: Mapping[str, Any]) -> Any:
    """Shards a frozen module over the ranks with the trainer's DeepSpeed `settings`. Returns
    an engine, which is called like the module."""
    import deepspeed

    shard(module, settings)
    kept = ("train_micro_batch_size_per_gpu", "bf16", "zero_optimization", "steps_per_print")
    return deepspeed.initialize(model=module, config={key: settings[key] for key in kept})[0]
