"""Saves and restores what a learner needs to continue a run. The buffer's store keeps the
position in the list of tasks. Uses no pickle.

    checkpoints/step-000050/
        model.safetensors  tokenizer…   a Hugging Face folder, in the training format (rank 0);
                                        with learner.lora the adapters in peft's format instead
        optimizer.safetensors           optimizer state, full-precision weights, RNG
        state.json                      written last: version, groups, model id, sizes and checksums

Rank 0 writes all of it, and learner.rank0 fills and reads `RunState`. So a run can continue with a
different number of ranks or a different ZeRO stage. A checkpoint is built under another name,
flushed to disk and renamed. So a folder called `step-…` is complete unless it was damaged later.
Damaged checkpoints are skipped.

    all ranks   step ─► gather ─► next steps ─► …
    rank 0                └─ copies ─► thread: write, flush to disk, rename, remove old ones
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from safetensors import SafetensorError

from learner.checkpoint_command import CheckpointCommand
from learner.watchdog import heartbeat
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import UserError
from r3l.files import checksums
from r3l.files.whole_file import BUILDING, read_json, replace_folder, write_json
from r3l.models.model_folder import write_checksums
from r3l.notices import notice, notice_again
from r3l.run.settings.learner import LearnerConfig

if TYPE_CHECKING:  # r3l-launch reads checkpoints without torch, which takes seconds to import
    from learner.step.deepspeed_trainer import DeepSpeedTrainer
    from learner.step.tensor_file import Copies

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"
"""The checkpoints' folder in a run."""
ADAPTER = "adapter"
"""The adapters' folder in a saved model. Next to the merged weights, transformers would find the
adapters and add them a second time."""
SCHEMA = 6
STATE, REMEDY = "state.json", "remove the checkpoint"
REQUIRED = {"version", "model_digest"}
"""Keys that every state file of this schema has."""


@dataclass(frozen=True)
class RunState:
    """A run's state, as saved in checkpoints. `version`: steps done. `groups`: ids of the last
    step's groups. `model_digest`: digest of the run's initial model."""

    version: int
    groups: tuple[str, ...] = ()
    model_digest: str = ""


class Checkpoints:
    """Writes a run's checkpoints. Keeps the newest `keep` checkpoints, and any that `command` still
    needs. `saved`: the newest checkpoint's version, or -1."""

    def __init__(
        self,
        trainer: DeepSpeedTrainer,
        folder: Path,
        tokenizer: Any,
        keep: int,
        command: CheckpointCommand | None = None,
    ) -> None:
        self.saved = -1
        self._trainer, self._folder = trainer, folder
        self._tokenizer, self._keep, self._command = tokenizer, keep, command
        self._disk = ThreadPoolExecutor(1, "checkpoint")
        self._building: Path | None = None  # on its way to disk
        self._flushed: Future[bool] | None = None  # rank 0's

    def save(self, state: RunState) -> None:
        """Starts to write a checkpoint with rank 0's `state`. `finish` waits for the disk. A failed
        write does not end training. Collective."""
        from learner.step import optimizer_state
        from learner.step.tensor_file import Copies

        self.finish()
        heartbeat(f"checkpoint {state.version}")
        trainer, first = self._trainer, self._trainer.rank == 0
        building = self._folder / f"{BUILDING}{state.version:06d}"

        def begin() -> None:
            for left in self._folder.glob(f"{BUILDING}*"):
                shutil.rmtree(left)
            building.mkdir(parents=True)

        copies = Copies()
        save_trained = trainer.save_adapters if trainer.adapted else trainer.save_model
        save_state = partial(optimizer_state.save, trainer)
        written = (
            _written(trainer, begin if first else None, building)
            and _written(trainer, partial(save_trained, building, copies.add), building)
            and _written(trainer, partial(save_state, building, copies.add), building)
        )
        if not written:
            return
        self._building, self.saved = building, state.version
        if first:
            put_on_disk = partial(self._put_on_disk, building, state, copies)
            self._flushed = self._disk.submit(_try_to_write, put_on_disk, building)

    def finish(self) -> bool:
        """Waits until the last checkpoint is on disk. If the write failed, sets `saved` to -1 and
        returns False. Collective."""
        if self._building is None:
            return self.saved >= 0
        building, self._building = self._building, None
        heartbeat(f"the disk, to flush checkpoint {self.saved}")
        good = self._flushed is None or self._flushed.result()
        if not _agreed(self._trainer, good, building):
            self.saved = -1
        return self.saved >= 0

    def close(self) -> None:
        """Waits until this rank has written its files."""
        heartbeat(f"the disk, to flush checkpoint {self.saved}")
        self._disk.shutdown()

    def _put_on_disk(self, building: Path, state: RunState, copies: Copies) -> None:
        copies.write()
        final = self._folder / f"step-{state.version:06d}"
        self._tokenizer.save_pretrained(building)
        _finish(self._trainer, building, final, state)
        # A newer one must be damaged, since this run did not continue from it: not counted.
        busy = self._command.busy() if self._command else []
        for old in [path for path in _all(self._folder) if path <= final][: -self._keep]:
            if old not in busy:
                shutil.rmtree(old)
        if self._command:
            self._command.submit(final, state.version)


def save_model(trainer: DeepSpeedTrainer, folder: Path, tokenizer: Any, step: int) -> bool:
    """Writes the weights as a Hugging Face folder. An older folder stays until the new one is
    complete. Returns whether all ranks succeeded. Collective."""
    heartbeat(f"to save {folder}")
    building = folder.with_name(f"{BUILDING}{folder.name}")

    def finish() -> None:
        tokenizer.save_pretrained(building)
        write_checksums(building, step)
        replace_folder(building, folder)

    return (
        _written(trainer, partial(trainer.save_model, building), building)
        and (
            not trainer.adapted
            or _written(trainer, partial(trainer.save_adapters, building / ADAPTER), building)
        )
        and _written(trainer, finish if trainer.rank == 0 else None, building)
    )


def _written(trainer: DeepSpeedTrainer, write: Callable[[], None] | None, building: Path) -> bool:
    """Calls `write`, if this rank has one. Returns whether all ranks succeeded. Collective."""
    return _agreed(trainer, write is None or _try_to_write(write, building), building)


def _try_to_write(write: Callable[[], None], building: Path) -> bool:
    """Calls `write` and returns whether it succeeded. A full or missing disk causes a notice, not
    an error."""
    try:
        write()
    except (OSError, SafetensorError) as error:
        why = f"{building.parent} could not be written ({error}); training continues"
        notice_again(str(building.parent), why)
        return False
    return True


def _agreed(trainer: DeepSpeedTrainer, good: bool, building: Path) -> bool:
    """Returns whether `good` is true on all ranks. If not, removes `building`. Collective."""
    if not trainer.on_any_rank(not good):
        return True
    if trainer.rank == 0:
        shutil.rmtree(building, ignore_errors=True)
    return False


def latest(folder: Path, below: int | None = None, *, thorough: bool = False) -> Path | None:
    """Finds the newest complete checkpoint. `below`: considers only lower versions. `thorough`:
    also compares the checksums of large files."""
    names = f"step-{below:06d}" if below is not None else ""
    for path in reversed(_all(folder)):
        if names and path.name >= names:
            continue
        missing = _damage(path, thorough)
        if not missing:
            return path
        say = notice if thorough else log.warning
        say(f"checkpoint {path} is passed over: {missing}")
    return None


def read_state(checkpoint: Path) -> RunState:
    return msgspec.convert(_read(checkpoint), RunState)


def check_resumable(
    checkpoint: Path, config: LearnerConfig, *, dtype: object, model_digest: str
) -> None:
    """Raises UserError if this run cannot continue from `checkpoint`. `dtype`: a torch dtype or its
    name. `model_digest`: digest of the run's initial model."""
    values = _read(checkpoint)
    if values["model_digest"] and values["model_digest"] != model_digest:
        raise UserError(
            f"checkpoint {checkpoint}: its training began with another model; resume with that "
            "model, or start a new run with --run"
        )
    for name, value, setting in (
        ("dtype", str(dtype), "learner.dtype"),
        ("lora", _lora(config), "learner.lora"),
    ):
        if (saved := values.get(name)) != value:
            raise UserError(
                f"checkpoint {checkpoint}: its {name} is {saved}, but this run has {value}; resume "
                f"with the same {setting}"
            )


def restore(trainer: DeepSpeedTrainer, checkpoint: Path) -> RunState:
    """Restores the optimizer, schedule, full-precision weights and RNG from `checkpoint`. Before
    that, call `check_resumable` and load the model from `checkpoint`."""
    from learner.step import optimizer_state

    state = read_state(checkpoint)
    optimizer_state.load(trainer, checkpoint, state.version)
    return state


def load_run(
    checkpoint: Path | None,
    model: Path,
    config: LearnerConfig,
    algorithm: Algorithm | None,
    seed: int,
) -> tuple[DeepSpeedTrainer, RunState]:
    """Loads a run's trainer and state from `checkpoint`, or from the initial `model` if there is no
    checkpoint. Fixes the number of threads. Call `check_resumable` first. Raises UserError if the
    algorithm's rows repeat their prefixes and the model would compute each prefix again."""
    from learner.step.deepspeed_trainer import DeepSpeedTrainer
    from r3l.training.averaged_weights import DECAY
    from r3l.training.measures.processor import fix_threads

    fix_threads()  # a run, its continuation and its replay begin here
    adapted = config.lora.rank > 0
    trainer = DeepSpeedTrainer(
        model if adapted else checkpoint or model,
        config,
        needs=() if algorithm is None else algorithm.needs,
        average_decay=float(getattr(algorithm, "average_decay", DECAY)),
        seed=seed,
        reference=model,
        adapter=checkpoint if adapted else None,
    )
    if algorithm is not None and algorithm.repeats_prefixes and trainer.module.pack == "rows":
        raise UserError(
            f"algorithm={algorithm.name}: makes many rows of each attempt, and this model, whose "
            "rows cannot be packed as trees, would compute their common prefix again for every "
            "row; choose another algorithm or model"
        )
    return trainer, RunState(0) if checkpoint is None else restore(trainer, checkpoint)


def _finish(trainer: DeepSpeedTrainer, building: Path, final: Path, state: RunState) -> None:
    """Writes the state file of a checkpoint and renames its folder."""
    values = asdict(state) | {
        "schema": SCHEMA,
        "dtype": str(trainer.dtype),
        "lora": _lora(trainer.config),
        "files": checksums.of_folder(building),
    }
    write_json(building / STATE, values)
    replace_folder(building, final)


def _lora(config: LearnerConfig) -> dict[str, Any] | None:
    """Returns the adapter settings as checkpoints store them; None if all weights are trained."""
    return config.lora.model_dump(mode="json") if config.lora.rank else None


def _read(checkpoint: Path) -> dict[str, Any]:
    """Reads a checkpoint's state file. Raises UserError if it is damaged or of another schema."""
    values = read_json(checkpoint / STATE, REMEDY, dict[str, Any]) or {}
    if values["schema"] != SCHEMA:
        raise UserError(
            f"checkpoint {checkpoint}: has schema {values['schema']}, but this r3l reads {SCHEMA}; "
            "resume with the r3l that wrote it"
        )
    return values


def _damage(checkpoint: Path, thorough: bool) -> str:
    """Describes the damage to a checkpoint; "" if it is complete. A checkpoint of another schema
    counts as complete."""
    if not (checkpoint / STATE).is_file():
        return f"{STATE} is missing"
    try:
        values = read_json(checkpoint / STATE, REMEDY, dict[str, Any]) or {}
        if values["schema"] != SCHEMA:
            return ""  # check_resumable refuses it
        if not values.keys() >= REQUIRED:
            return f"{STATE} lacks {', '.join(sorted(REQUIRED - values.keys()))}"
        beat = partial(heartbeat, f"to check {checkpoint}")
        return checksums.damage(checkpoint, values.get("files", {}), beat, thorough=thorough)
    except (UserError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        return f"{STATE} cannot be read ({error!s})"


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))
