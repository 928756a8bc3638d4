"""Checkpoints: everything a learner needs to go on as if it had not stopped, without pickle.

    checkpoints/step-000050/
        model.safetensors  tokenizer…   a Hugging Face folder, in the training format (rank 0)
        rank-0.safetensors  .json       of each rank: optimizer state, full-precision weights, RNG
        state.json                      version, draw, ranks, model identity, file sizes; last

A checkpoint is built under another name, flushed to disk and renamed, so a folder called `step-…`
is whole or was damaged later; a damaged one is passed over. A tree of state is split into its
tensors (safetensors) and everything else (JSON).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from learner.step.deepspeed_config import zero_stage
from learner.step.trainer import Trainer
from learner.watchdog import sign
from r3l.config import LearnerConfig
from r3l.errors import UserError

log = logging.getLogger(__name__)

SCHEMA = 2
STATE = "state.json"
SAID = {"version", "origin"}
"""What a state file of this schema cannot do without."""
MASTERS = (
    "single_partition_of_fp32_groups",  # ZeRO 1, 2
    "fp32_groups_flat_partition",  # ZeRO 1 that adds up bfloat16 gradients in float32
    "fp32_partitioned_groups_flat",  # ZeRO 3
)
"""Where DeepSpeed's optimizers keep this rank's full-precision weights."""


@dataclass(frozen=True)
class State:
    """What a checkpoint says about the run it belongs to.

    `version`: optimizer steps done, also the place in the learning-rate schedule. `draw_id` and
    `groups`: the buffer's last draw that was trained, 0 and empty before the first. `origin`:
    fingerprint of the model the run began with. `max_staleness`: as lowered by the safety meter,
    -1 where it was not.
    """

    version: int
    draw_id: int = 0
    groups: tuple[str, ...] = ()
    origin: str = ""
    max_staleness: int = -1


def save(trainer: Trainer, folder: Path, state: State, tokenizer: Any, keep: int) -> None:
    """Write `folder/step-<version>`; a collective. Only the newest `keep` checkpoints stay.

    `state` counts on rank 0 only.
    """
    sign(f"checkpoint {state.version}")
    final = folder / f"step-{state.version:06d}"
    building = folder / f".building-{state.version:06d}"
    if trainer.rank == 0:
        for left in folder.glob(".building-*"):
            shutil.rmtree(left)
        building.mkdir(parents=True)
    trainer.barrier()
    trainer.save_model(building)
    tensors, plain = _split(_rank_state(trainer))
    save_file(tensors, building / f"rank-{trainer.rank}.safetensors")
    (building / f"rank-{trainer.rank}.json").write_text(json.dumps(plain))
    for path in building.glob(f"rank-{trainer.rank}.*"):
        _flush(path)
    trainer.barrier()
    if trainer.rank == 0:
        tokenizer.save_pretrained(building)
        _finish(trainer, building, final, state)
        # A newer one is damaged, or this run would have gone on from it.
        for old in [path for path in _all(folder) if path <= final][:-keep]:
            shutil.rmtree(old)
    trainer.barrier()


def save_model(trainer: Trainer, folder: Path, tokenizer: Any) -> None:
    """Write a Hugging Face folder, whole or as it was before; a collective."""
    sign(f"to save {folder}")
    building = folder.with_name(f".building-{folder.name}")
    trainer.save_model(building)
    if trainer.rank == 0:
        tokenizer.save_pretrained(building)
        if folder.exists():
            shutil.rmtree(folder)
        building.rename(folder)


def latest(folder: Path) -> Path | None:
    """The newest checkpoint whose files are all there."""
    for path in reversed(_all(folder)):
        missing = _damage(path)
        if not missing:
            return path
        log.warning("checkpoint %s is passed over: %s", path, missing)
    return None


def read_state(checkpoint: Path) -> State:
    """What the checkpoint says about its run."""
    known = State.__dataclass_fields__
    values = {k: v for k, v in _read(checkpoint).items() if k in known}
    return State(**values | {"groups": tuple(values.get("groups", ()))})


def check(
    checkpoint: Path, config: LearnerConfig, *, world: int, dtype: torch.dtype, origin: str
) -> None:
    """Raise UserError unless a run of `world` ranks in `dtype` that began with the model of
    fingerprint `origin` can go on from `checkpoint`."""
    stage = zero_stage(config, bf16=dtype == torch.bfloat16)
    values = _read(checkpoint)
    if values["origin"] and values["origin"] != origin:
        raise UserError(
            f"checkpoint {checkpoint}: made from another model than the one given; resume with "
            "the model the run began with, or start a new run with --run"
        )
    for name, ours, setting in (
        ("world", world, "--learner"),
        ("stage", stage, "learner.zero_stage"),
        ("dtype", str(dtype), "learner.dtype"),
    ):
        if (theirs := values.get(name)) != ours:
            raise UserError(
                f"checkpoint {checkpoint}: {name} {theirs}, this run has {ours}; resume "
                f"with the same {setting}"
            )


def restore(trainer: Trainer, checkpoint: Path) -> State:
    """Put optimizer, schedule, full-precision weights and RNG back (the model was loaded from the
    same folder). Call `check` first."""
    state = read_state(checkpoint)
    tensors = load_file(checkpoint / f"rank-{trainer.rank}.safetensors")
    plain = json.loads((checkpoint / f"rank-{trainer.rank}.json").read_text())
    _load_rank_state(trainer, _join(tensors, plain), state.version)
    return state


def _rank_state(trainer: Trainer) -> dict[str, Any]:
    generators = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        generators["cuda"] = torch.cuda.get_rng_state()
    return {
        "optimizer": [_inner(trainer).state.get(tensor, {}) for tensor in _trained(trainer)],
        "masters": _masters(trainer),
        "rng": generators,
    }


def _load_rank_state(trainer: Trainer, saved: Mapping[str, Any], updates: int) -> None:
    # Hyperparameters are those of this run's settings; only what was accumulated is put back.
    inner = _inner(trainer)
    for tensor, state in zip(_trained(trainer), saved["optimizer"], strict=True):
        if state:
            inner.state[tensor] = {
                k: v.to(_home(v, tensor, inner)) if isinstance(v, torch.Tensor) else v
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


def _home(value: torch.Tensor, tensor: torch.Tensor, inner: Any) -> torch.device:
    """Where the torch optimizer looks for a piece of its state of `tensor`: scalars, which count
    steps, on the host unless it is fused."""
    on_host = not value.dim() and not inner.param_groups[0].get("fused")
    return torch.device("cpu") if on_host else tensor.device


def _inner(trainer: Trainer) -> Any:
    """The torch optimizer, inside DeepSpeed's where there is one."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def _trained(trainer: Trainer) -> list[torch.Tensor]:
    """The tensors the torch optimizer keeps state for. (Its own list of them is empty between
    the steps of ZeRO 3.)"""
    groups = _inner(trainer).param_groups
    return _masters(trainer) or [tensor for group in groups for tensor in group["params"]]


def _masters(trainer: Trainer) -> list[torch.Tensor]:
    return [t for name in MASTERS for t in getattr(trainer.optimizer, name, ())]


def _finish(trainer: Trainer, building: Path, final: Path, state: State) -> None:
    """Describe a built checkpoint and give it its name."""
    for path in building.iterdir():
        _flush(path)
    files = {path.name: path.stat().st_size for path in building.iterdir()}
    values = asdict(state) | {
        "schema": SCHEMA,
        "world": trainer.world,
        "stage": trainer.stage,
        "dtype": str(trainer.dtype),
        "files": files,
    }
    (building / STATE).write_text(json.dumps(values, indent=1))
    _flush(building / STATE)
    _flush(building)
    if final.exists():
        shutil.rmtree(final)
    building.rename(final)
    _flush(final.parent)


def _read(checkpoint: Path) -> dict[str, Any]:
    """What stands in the state file of a checkpoint that `latest` has found whole."""
    values: dict[str, Any] = json.loads((checkpoint / STATE).read_text())
    if values["schema"] != SCHEMA:
        raise UserError(
            f"checkpoint {checkpoint}: of schema {values['schema']}, this r3l reads {SCHEMA}; "
            "resume it with the r3l that wrote it"
        )
    return values


def _damage(checkpoint: Path) -> str:
    """What is missing from a checkpoint, or ""."""
    if not (checkpoint / STATE).is_file():
        return f"{STATE} is missing"
    try:
        values = json.loads((checkpoint / STATE).read_bytes())
        if values["schema"] == SCHEMA and not values.keys() >= SAID:
            return f"{STATE} lacks {', '.join(sorted(SAID - values.keys()))}"
        files = dict(values.get("files", {}))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{STATE} cannot be read ({error!r:.80})"
    for name, size in files.items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is missing or not {size} bytes long"
    return ""


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _flush(path: Path) -> None:
    """Have the file or folder on disk, also after a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _split(tree: Any) -> tuple[dict[str, torch.Tensor], Any]:
    """(tensors by path, JSON tree in which {"$tensor": path} stands for each)."""
    tensors: dict[str, torch.Tensor] = {}

    def walk(node: Any, path: str) -> Any:
        if isinstance(node, torch.Tensor):
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


def _join(tensors: dict[str, torch.Tensor], node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if "$tensor" in node:
        return tensors[node["$tensor"]]
    if "$dict" in node:
        return {key: _join(tensors, value) for key, value in node["$dict"]}
    return [_join(tensors, value) for value in node["$list"]]
