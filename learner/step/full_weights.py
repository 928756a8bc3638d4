"""The weights of a model in full, one parameter at a time.

Under ZeRO 3 every rank holds a share of each parameter. Gathering all of them at once would need
the memory of a whole model on every rank; gathering one at a time needs that of the largest one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from learner.step import adapters
from learner.step.tensor_file import Shape, Write, drain, write_tensors

WEIGHTS = "model.safetensors"


def shapes(lm: nn.Module) -> list[Shape]:
    """(name, dtype, shape) of every parameter as in a model folder; tied ones appear once."""
    return [
        (adapters.base_name(name), one.dtype, full_shape(one))
        for name, one in lm.named_parameters()
        if not adapters.is_adapter(name)
    ]


def tensors(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every parameter, in the order of `shapes`, merged with its adapter if there
    is one. A collective under ZeRO 3: every rank goes through all of them. Hold no more of them
    than is needed."""
    layers = {layer.base_layer.weight: layer for layer in adapters.adapted_layers(lm)}
    for name, parameter in lm.named_parameters():
        if adapters.is_adapter(name):
            continue
        layer = layers.get(parameter)
        with gathered(parameter, *(adapters.parts(layer) if layer else ())):
            # A sharded parameter gets its memory back when it is gathered again; this one stays
            # with the tensor.
            tensor = adapters.merged(layer) if layer else parameter.detach()
        yield adapters.base_name(name), tensor


@contextmanager
def gathered(*parameters: nn.Parameter) -> Iterator[None]:
    """Whole parameters inside the block; a collective under ZeRO 3."""
    import deepspeed

    sharded = [one for one in parameters if hasattr(one, "ds_id")]
    with deepspeed.zero.GatheredParameters(sharded, enabled=bool(sharded)):
        yield


def save_model(lm: Any, folder: Path, write: Write | None = write_tensors) -> None:
    """Write a plain Hugging Face model folder, or nothing without `write`; a collective under
    ZeRO 3, in which a rank that cannot write takes part to the end."""
    each = tensors(lm)
    try:
        if write is None:
            return
        if getattr(lm, "_weight_conversions", None):
            # Several parameters become one in the file, or one several: transformers needs them all
            whole = {name: tensor.to("cpu").contiguous() for name, tensor in each}
            lm.save_pretrained(folder, state_dict=whole)
            return
        lm.save_pretrained(folder, state_dict={})  # all but the weights
        write(folder / WEIGHTS, shapes(lm), each)
    finally:
        drain(each)


def save_adapters(lm: Any, folder: Path, write: Write | None = write_tensors) -> None:
    """Write the adapters in peft's format, or nothing without `write`; a collective as `save_model`
    is."""
    each = adapter_tensors(lm)
    try:
        if write is not None:
            adapters.write_config(lm, folder)
            write(folder / adapters.WEIGHTS, adapter_shapes(lm), each)
    finally:
        drain(each)


def full_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """The shape of a parameter, of which this rank may hold only a share."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def adapter_shapes(lm: nn.Module) -> list[Shape]:
    """(name, dtype, shape) of every matrix of the adapters, in peft's names."""
    return [(adapters.peft_name(n), one.dtype, full_shape(one)) for n, one in _adapters(lm)]


def adapter_tensors(lm: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of every matrix of the adapters, in the order of `adapter_shapes`; a
    collective as `tensors` is."""
    for name, parameter in _adapters(lm):
        with gathered(parameter):
            tensor = parameter.detach()
        yield adapters.peft_name(name), tensor


def _adapters(lm: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, one) for name, one in lm.named_parameters() if adapters.is_adapter(name)]


def shard(module: nn.Module, settings: Mapping[str, Any]) -> None:
    """Shard a module over the ranks for ZeRO 3, one parameter after the other: DeepSpeed's start
    would first move all of it to each device."""
    import deepspeed

    deepspeed.zero.Init(module=module, config_dict_or_path=dict(settings))


def sharded(module: nn.Module, settings: Mapping[str, Any]) -> Any:
    """A module that is not trained, sharded over the ranks by ZeRO 3 under the trainer's DeepSpeed
    `settings`; it is called as before."""
    import deepspeed

    shard(module, settings)
    kept = ("train_micro_batch_size_per_gpu", "bf16", "zero_optimization", "steps_per_print")
    return deepspeed.initialize(model=module, config={key: settings[key] for key in kept})[0]
