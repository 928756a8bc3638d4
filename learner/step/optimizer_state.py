"""Saves and loads the optimizer's state per parameter, for any number of ranks and any ZeRO stage.

    rank 0   ██████░░░░   each rank's fragments of      ─► gathered one parameter at a time
    rank 1   ░░░░░░████   a parameter's flat tensors       ─► optimizer.safetensors (rank 0)

    exp_avg/<parameter>, exp_avg_sq/<parameter>   moments, float32
    master/<parameter>                            full-precision weights, if trained in bfloat16
    averaged/<parameter>                          running average, if the algorithm needs it
    rng/cpu, rng/cuda                             states of rank 0's random generators

The optimizer's number of steps is not saved, since it equals the checkpoint's version. Each rank
picks its own fragments from the file. So the number of ranks and the stage may change.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn

from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.step.full_weights import full_shape
from learner.step.tensor_file import Shape, Write, drain, write_tensors

FILE = "optimizer.safetensors"
MASTERS = (
    "single_partition_of_fp32_groups",  # ZeRO 1, 2
    "fp32_groups_flat_partition",  # ZeRO 1 that adds up bfloat16 gradients in float32
    "fp32_partitioned_groups_flat",  # ZeRO 3
)
"""Attributes of DeepSpeed's optimizers. If DeepSpeed keeps a full-precision copy of this rank's
weights, one of the attributes holds the copy, flattened."""
MASTER, AVERAGED = "master", "averaged"


class Fragment(NamedTuple):
    """This rank's part of a flattened parameter. The part begins at index `start` of the parameter,
    and at index `place` of `tensor`."""

    tensor: Tensor  # the torch optimizer's state is keyed by this object
    place: int
    start: int
    length: int


def save(trainer: DeepSpeedTrainer, folder: Path, write: Write = write_tensors) -> None:
    """Writes the optimizer's state from rank 0. Every rank must call it."""
    keys, trained = _keys(trainer), _trained(trainer)
    keys += [MASTER] * (trainer.dtype != torch.float32)
    extra = [("rng/cpu", torch.get_rng_state())]
    if torch.cuda.is_available():
        extra.append(("rng/cuda", torch.cuda.get_rng_state()))
    if trainer.average is not None:  # which every rank has whole
        means = trainer.average.means
        extra += [(f"{AVERAGED}/{name}", mean) for name, mean in means.items()]

    def each() -> Iterator[tuple[str, Tensor]]:
        yield from extra
        for name, parameter in trained:
            fragment = _fragment(trainer, parameter)
            for key in keys:
                yield f"{key}/{name}", _whole(trainer, parameter, fragment, key)

    shapes: list[Shape] = [(name, value.dtype, tuple(value.shape)) for name, value in extra]
    shapes += [
        (f"{key}/{name}", torch.float32, full_shape(p)) for name, p in trained for key in keys
    ]
    tensors = each()
    try:
        if trainer.rank == 0:
            write(folder / FILE, shapes, tensors)
    finally:
        drain(tensors)  # the other ranks do so too, even if this one cannot write


def load(trainer: DeepSpeedTrainer, folder: Path, updates: int) -> None:
    """Restores the state that `save` wrote. `updates`: the number of optimizer steps before the
    save. Hyperparameters come from this run's settings."""
    with safe_open(folder / FILE, framework="pt") as file:
        names = set(file.keys())
        keys = {name.split("/")[0] for name in names} - {"rng", MASTER, AVERAGED}
        for name, parameter in _trained(trainer):
            fragment = _fragment(trainer, parameter)
            if fragment is None:
                continue
            if (master := f"{MASTER}/{name}") in names:
                _fill(fragment.tensor.data, fragment, file.get_tensor(master))
            if keys:
                state = _state(trainer, fragment.tensor, keys, updates)
                for key in keys:
                    _fill(state[key], fragment, file.get_tensor(f"{key}/{name}"))
        average = trainer.average
        if average is not None and AVERAGED in {name.split("/")[0] for name in names}:
            average.load({n: file.get_tensor(f"{AVERAGED}/{n}") for n in average.means})
        torch.set_rng_state(file.get_tensor("rng/cpu"))
        if "rng/cuda" in names and torch.cuda.is_available():
            torch.cuda.set_rng_state(file.get_tensor("rng/cuda"))
    schedule = trainer.schedule
    schedule.last_epoch = updates
    for group, base, share in zip(
        _torch_optimizer(trainer).param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * share(updates)


def _whole(
    trainer: DeepSpeedTrainer, parameter: nn.Parameter, fragment: Fragment | None, key: str
) -> Tensor:
    """Gathers the state `key` of a whole parameter, in float32. Every rank must call it."""
    shape = full_shape(parameter)
    whole = torch.zeros(shape, dtype=torch.float32, device=trainer.device).view(-1)
    if fragment is not None:
        held = (
            fragment.tensor
            if key == MASTER
            else _torch_optimizer(trainer).state[fragment.tensor][key]
        )
        part = held.detach().view(-1)[fragment.place : fragment.place + fragment.length]
        whole[fragment.start : fragment.start + fragment.length] = part.to(whole.device)
    if trainer.world > 1 and trainer.stage > 0:  # without ZeRO every rank has all of it
        torch.distributed.all_reduce(whole)
    return whole.view(shape)


def _fill(held: Tensor, fragment: Fragment, whole: Tensor) -> None:
    part = whole.view(-1)[fragment.start : fragment.start + fragment.length]
    held.view(-1)[fragment.place : fragment.place + fragment.length].copy_(part)


def _fragment(trainer: DeepSpeedTrainer, parameter: nn.Parameter) -> Fragment | None:
    """Returns this rank's part of a trained parameter; None if the rank has none."""
    held = [t for name in MASTERS for t in getattr(trainer.optimizer, name, ())]
    size = math.prod(full_shape(parameter))
    if hasattr(parameter, "ds_id"):  # ZeRO 3: equal parts, the last one filled up
        optimizer: Any = trainer.optimizer
        index, place, part = optimizer.grad_position[optimizer.get_param_id(parameter)]
        start = part * trainer.rank
        count = min(part, size - start)
        return Fragment(held[index], place, start, count) if count > 0 else None
    if not held:
        return Fragment(parameter, 0, 0, size)
    mapping: Any = getattr(parameter, "_hp_mapping", None)
    if mapping is None:  # ZeRO 1, 2: all of it belongs to other ranks
        return None
    here, there = mapping.hp_fragment_address, mapping.lp_fragment_address
    return Fragment(held[mapping.param_group_index], here.start, there.start, here.numel)


def _state(
    trainer: DeepSpeedTrainer, tensor: Tensor, keys: set[str], updates: int
) -> dict[str, Any]:
    """Returns a tensor's optimizer state. If the state is missing, creates it at step `updates`."""
    inner = _torch_optimizer(trainer)
    state: dict[str, Any] = inner.state[tensor]
    if not state.keys() >= keys:
        state["step"] = updates
        if isinstance(inner, torch.optim.AdamW):  # it counts in a tensor, DeepSpeed's do not
            fused = inner.param_groups[0].get("fused")
            device = tensor.device if fused else torch.device("cpu")
            state["step"] = torch.tensor(float(updates), device=device)
        for key in keys:
            state[key] = torch.zeros_like(tensor, requires_grad=False)
    return state


def _keys(trainer: DeepSpeedTrainer) -> list[str]:
    """Returns the names of the optimizer's moments; none before the first step."""
    states = _torch_optimizer(trainer).state.values()
    some: dict[str, Any] = next((state for state in states if state), {})
    return sorted(key for key, held in some.items() if isinstance(held, Tensor) and held.dim())


def _trained(trainer: DeepSpeedTrainer) -> list[tuple[str, nn.Parameter]]:
    return [(n, p) for n, p in trainer.module.lm.named_parameters() if p.requires_grad]


def _torch_optimizer(trainer: DeepSpeedTrainer) -> Any:
    """Returns the torch optimizer that DeepSpeed's optimizer wraps."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)
