"""Work on two ranks, in forks of the process that has imported torch and DeepSpeed for learners."""

import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from launch.backends.process_commands import free_port
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.algorithms.batch import Batch
from r3l.run.config import load
from tests.forks import Forked
from tests.learner.fakes import IMPORTED, measured, rows_of_rank_0
from tests.learner.one_rank import TAKEN
from tests.r3l.training.fakes import explored

Steps = dict[str, list[dict[str, float]]]


def on_two_ranks(work: Callable[..., None], *arguments: Any) -> None:
    """Calls a function of a module on two ranks. Takes another port if the first one is taken
    meanwhile. A rank that fails ends the other one."""
    codes: list[int | None] = [TAKEN]
    for _ in range(3):
        if TAKEN in codes:
            codes = _two_ranks(work, arguments, free_port())
    assert codes == [0, 0], "see what the ranks printed"


def _two_ranks(
    work: Callable[..., None], arguments: tuple[Any, ...], port: int
) -> list[int | None]:
    """Returns the exit codes of two ranks, None if one was still running."""
    call = pickle.dumps((work, arguments)).hex()
    given = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        Forked(
            "tests.learner.one_rank",
            [call],
            imported=IMPORTED,
            stdout=1,
            stderr=2,
            env=given | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    end = time.monotonic() + 500
    try:
        while None in (codes := [rank.poll() for rank in ranks]):
            if any(codes) or time.monotonic() > end:
                break
            time.sleep(0.02)
        return codes
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def three_steps(model: Path, algorithms: str, *variants: str) -> Steps:
    """Three optimizer steps of each of the algorithms under each of `variants` (learner settings,
    `;` between several). The last step has a sum over the weights as they are published."""
    groups = explored()
    steps: Steps = {variant: [] for variant in variants}
    for variant in variants:
        for name in algorithms.split():
            settings = [f"algorithm={name}", "algorithm.group_size=4", "learner.lr=1e-3"]
            config = load(None, [*settings, *(f"learner.{one}" for one in variant.split(";"))])
            algorithm = config.algorithm
            trainer = DeepSpeedTrainer(model, config.learner, needs=algorithm.needs)
            rows = rows_of_rank_0(trainer, algorithm, Batch(groups))
            steps[variant] += [measured(trainer.step(rows, algorithm.loss)) for _ in range(3)]
            flat = [tensor.double().flatten() for _, tensor in trainer.weights()]
            sums = [float(w @ torch.arange(len(w)).double().cos()) for w in flat]
            steps[variant][-1]["published"] = sum(sums)
    return steps


def three_steps_of_two_ranks(out: Path, model: Path, algorithms: str, *variants: str) -> Steps:
    on_two_ranks(_write_three_steps, out, model, algorithms, *variants)
    # A compiler run that is killed would leave a lock that the next learner waits for.
    assert not out.with_suffix(".compiled").exists(), "DeepSpeed compiled at run time"
    steps: Steps = json.loads(out.read_text())
    return steps


def _write_three_steps(out: Path, *given: Any) -> None:
    os.environ["TORCH_EXTENSIONS_DIR"] = str(out.with_suffix(".compiled"))
    steps = three_steps(*given)
    if torch.distributed.get_rank() == 0:
        out.write_text(json.dumps(steps))
