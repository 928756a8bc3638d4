"""What two ranks see under ZeRO 3 of whole models."""

import ctypes
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learner.publishing.publisher import WeightPublisher
from learner.step import full_weights
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import Row
from r3l.run.config import RunConfig, load
from tests.learner.fakes import measured, rows_of_rank_0
from tests.r3l.training.fakes import explored

SETTINGS = (
    "algorithm=reflect_grpo", "algorithm.group_size=4", "learner.lr=1e-3",
    "learner.compute=dtype",  # ranks agree to the last digits of float32
)  # fmt: skip
M_MMAP_THRESHOLD = -3  # of malloc.h


def work(stage: int) -> RunConfig:
    """The configuration of a step whose loss needs a reference model."""
    return load(None, [*SETTINGS, f"learner.zero_stage={stage}"])


def rows_of(config: RunConfig, trainer: DeepSpeedTrainer) -> list[Row]:
    """The rows of a step, for which the reference is asked."""
    return rows_of_rank_0(trainer, config.algorithm, Batch(explored()))


def refused(trainer: DeepSpeedTrainer) -> bool:
    """Whether a rank could not save the model in a folder that cannot be made."""
    try:
        trainer.save_model(Path("/proc/nowhere"))
    except OSError:
        return True
    return False


def published(trainer: DeepSpeedTrainer) -> tuple[int, int] | None:
    """The sums over what rank 0 publishes; the other ranks take part in gathering it."""
    if trainer.rank > 0:
        for _ in trainer.weights():
            pass
        return None
    publisher = WeightPublisher("tcp://127.0.0.1:0")
    publisher.publish(
        1, trainer.weights(), None, full_weights.shapes(full_weights.whole(trainer.module.lm))
    )
    manifest = publisher._manifest
    publisher.close()
    return manifest.sums if manifest else None


def peak_of(action: Callable[[], object]) -> int:
    """Bytes by which this process's memory grows at most while `action` runs."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at the present size
    before = _kib("VmRSS")
    action()
    return (_kib("VmHWM") - before) << 10


def _kib(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


def watch(out: Path, model: Path) -> None:
    """Writes OUT/<rank>.json and the folder OUT/saved."""
    # Memory that is freed goes back at once, so that what is held together counts.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 65536)
    config = work(stage=3)
    trainer = DeepSpeedTrainer(model, config.learner, needs=config.algorithm.needs)
    for _ in trainer.weights():  # what is allocated once, at the first gathering
        pass
    seen: dict[str, Any] = {
        "all": sum(
            4 * math.prod(shape)
            for *_, shape in full_weights.shapes(full_weights.whole(trainer.module.lm))
        ),
        "gather": peak_of(lambda: [None for _ in trainer.weights()]),
        "save": peak_of(lambda: trainer.save_model(out / "saved")),
    }
    seen["refused"] = refused(trainer)
    seen["sums"] = published(trainer)
    seen["held"] = sum(p.numel() for p in trainer.reference.module.parameters())
    rows, loss = rows_of(config, trainer), config.algorithm.loss
    seen["steps"] = [measured(trainer.step(rows, loss)) for _ in range(2)]
    (out / f"{trainer.rank}.json").write_text(json.dumps(seen))
