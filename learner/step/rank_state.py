"""The state of one rank's trainer as tensors and JSON: what a checkpoint holds of each rank.

optimizer moments, full-precision weights, RNG ─► tree ─► tensors by path, JSON tree
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from learner.step.trainer import Trainer

MASTERS = (
    "single_partition_of_fp32_groups",  # ZeRO 1, 2
    "fp32_groups_flat_partition",  # ZeRO 1 that adds up bfloat16 gradients in float32
    "fp32_partitioned_groups_flat",  # ZeRO 3
)
"""The attributes of DeepSpeed's optimizers that hold this rank's full-precision weights."""


def rank_state(trainer: Trainer) -> tuple[dict[str, Tensor], Any]:
    """(tensors by path, JSON tree that refers to them) of this rank."""
    generators = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        generators["cuda"] = torch.cuda.get_rng_state()
    return split(
        {
            "optimizer": [_inner(trainer).state.get(tensor, {}) for tensor in _trained(trainer)],
            "masters": _masters(trainer),
            "rng": generators,
        }
    )


def load_rank_state(
    trainer: Trainer, tensors: Mapping[str, Tensor], tree: Any, updates: int
) -> None:
    """Restore what `rank_state` returned after `updates` optimizer steps.

    Hyperparameters are those of this run's settings; only what was accumulated is restored.
    """
    saved, inner = join(tensors, tree), _inner(trainer)
    for tensor, state in zip(_trained(trainer), saved["optimizer"], strict=True):
        if state:
            inner.state[tensor] = {
                k: v.to(_device(v, tensor, inner)) if isinstance(v, Tensor) else v
                for k, v in state.items()
            }
    for ours, theirs in zip(_masters(trainer), saved["masters"], strict=True):
        ours.data.copy_(theirs)
    schedule = trainer.schedule
    schedule.last_epoch = updates
    for group, base, share in zip(
        inner.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * share(updates)
    torch.set_rng_state(saved["rng"]["cpu"])
    if "cuda" in saved["rng"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["rng"]["cuda"])


def split(tree: Any) -> tuple[dict[str, Tensor], Any]:
    """(tensors by path, JSON tree in which {"$tensor": path} refers to each)."""
    tensors: dict[str, Tensor] = {}

    def walk(node: Any, path: str) -> Any:
        if isinstance(node, Tensor):
            tensors[path] = node.detach().to("cpu").clone().contiguous()
            return {"$tensor": path}
        if isinstance(node, dict):
            pairs = [[key, walk(value, f"{path}/{key}")] for key, value in node.items()]
            return {"$dict": pairs}  # JSON would turn integer keys into text
        if isinstance(node, list | tuple):
            return {"$list": [walk(value, f"{path}/{i}") for i, value in enumerate(node)]}
        if isinstance(node, str | int | float | bool | None):
            return node
        raise TypeError(f"{path}: a {type(node).__name__} cannot be kept in a checkpoint")

    return tensors, walk(tree, "")


def join(tensors: Mapping[str, Tensor], node: Any) -> Any:
    """The tree that `split` was given; lists for tuples."""
    if not isinstance(node, dict):
        return node
    if "$tensor" in node:
        return tensors[node["$tensor"]]
    if "$dict" in node:
        return {key: join(tensors, value) for key, value in node["$dict"]}
    return [join(tensors, value) for value in node["$list"]]


def _device(value: Tensor, tensor: Tensor, inner: Any) -> torch.device:
    """The device on which a torch optimizer expects part of its state of `tensor`: scalars, which
    count steps, are on the host unless the optimizer is fused."""
    on_host = not value.dim() and not inner.param_groups[0].get("fused")
    return torch.device("cpu") if on_host else tensor.device


def _inner(trainer: Trainer) -> Any:
    """The torch optimizer, inside DeepSpeed's if there is one."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def _trained(trainer: Trainer) -> list[Tensor]:
    """The tensors for which the torch optimizer keeps state. (Its own list of them is empty
    between the steps of ZeRO 3.)"""
    groups = _inner(trainer).param_groups
    return _masters(trainer) or [tensor for group in groups for tensor in group["params"]]


def _masters(trainer: Trainer) -> list[Tensor]:
    return [t for name in MASTERS for t in getattr(trainer.optimizer, name, ())]
