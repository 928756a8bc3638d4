"""The learner on a GPU computes what it computes on a CPU, and continues from its checkpoints.

python -m benchmarks.gpu.agreement MODEL     a CPU's answers as JSON, in a process without GPUs
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learner import synthetic, write_random_model
from learner.checkpoint import Checkpoints, RunState, latest, load_run
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l.algorithms.rows import Row
from r3l.models.model_path import builtin_policy
from r3l.run.config import load
from r3l.training.micro_batch import collate
from r3l.training.model import load_model
from r3l.training.step_loss import Loss

SHAPE = {
    "vocab_size": 8192, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
STEPS = 5
FORMATS = {
    "float32": ("learner.dtype=float32",),
    **{
        f"bfloat16 zero {stage}": ("learner.dtype=bfloat16", f"learner.zero_stage={stage}")
        for stage in (1, 2, 3)
    },
}
Trace = dict[str, list[float]]


def agreement(scratch: Path) -> Iterator[dict[str, Any]]:
    """The largest difference of losses and gradient norms over a few steps, between this machine's
    GPU and its CPU in float32."""
    model = _model(scratch)
    command = [sys.executable, "-m", "benchmarks.gpu.agreement", str(model)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        ours = {name: trace(model, *settings) for name, settings in FORMATS.items()}
        assert child.stdout is not None
        theirs = json.loads(child.stdout.read().splitlines()[-1])
    for name, mine in ours.items():
        yield {
            "format": name,
            **{key: _furthest(mine[key], theirs[key]) for key in mine},
            "cpu": theirs,
            "gpu": mine,
        }


def attentions(scratch: Path) -> Iterator[dict[str, Any]]:
    """The largest error of a log-probability (nats), by attention, packing and format, against
    float64 on the CPU."""
    model, rows = _model(scratch), _rows()
    right = _logprobs(model, rows, torch.float64, "rows", "eager", torch.device("cpu"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for dtype in (torch.float32, torch.bfloat16):
        for pack, implementation in (("tree", "auto"), ("rows", "sdpa"), ("rows", "eager")):
            found = _logprobs(model, rows, dtype, pack, implementation, device)
            error = float((found - right).abs().max())
            yield {"dtype": str(dtype), "pack": pack, "attention": implementation, "error": error}


def resume(scratch: Path) -> Iterator[dict[str, Any]]:
    """Gradient norms and losses of two steps after a checkpoint, of the engine that wrote it and
    of one that loaded it; `repeat`: the difference of two that loaded it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(builtin_policy())
    for name, settings in FORMATS.items():
        model, folder = _model(scratch), scratch / f"checkpoints {name}"
        config = load(None, ["learner.lr=1e-3", *settings])
        algorithm = config.algorithm
        trainer = DeepSpeedTrainer(model, config.learner, needs=algorithm.needs)
        _steps(trainer, algorithm.loss, 3)
        checkpoints = Checkpoints(trainer, folder, tokenizer, keep=1)
        checkpoints.save(RunState(3))
        checkpoints.finish()
        checkpoints.close()
        on = _steps(trainer, algorithm.loss, 2)
        saved = latest(folder)
        assert saved is not None
        again, repeat = (
            _steps(load_run(saved, model, config.learner, algorithm, 0)[0], algorithm.loss, 2)
            for _ in range(2)
        )
        yield {
            "format": name,
            **{key: _furthest(on[key], again[key]) for key in on},
            "repeat": {key: _furthest(again[key], repeat[key]) for key in on},
            "continued": on,
            "resumed": again,
        }
        gc.collect()


MEASURES: dict[str, Callable[[Path], Iterator[dict[str, Any]]]] = {
    "agreement": agreement,
    "attentions": attentions,
    "resume": resume,
}


def trace(model: Path, *settings: str) -> Trace:
    """Losses and gradient norms of a few steps of a new engine."""
    config = load(None, ["learner.lr=1e-3", *settings])
    trainer = DeepSpeedTrainer(model, config.learner, needs=config.algorithm.needs)
    return _steps(trainer, config.algorithm.loss, STEPS)


def _steps(trainer: DeepSpeedTrainer, loss: Loss, count: int) -> Trace:
    results = [trainer.step(_rows(), loss).metrics for _ in range(count)]
    return {
        key: [metrics[f"learner/{key}"] for metrics in results] for key in ("loss", "grad_norm")
    }


def _logprobs(
    model: Path, rows: list[Row], dtype: torch.dtype, pack: str, attention: str, device: Any
) -> torch.Tensor:
    module = load_model(model, dtype, pack, implementation=attention).to(device)
    micro = collate(rows, device)
    with torch.no_grad():
        logprobs_BT = module(micro.nodes, micro.mask_BT, micro.temperatures_B)[0]
    return logprobs_BT.double().cpu()


def _model(scratch: Path) -> Path:
    """The folder of the tiny model, written once."""
    model = scratch / "tiny"
    if not model.exists():
        write_random_model(model, SHAPE, torch.bfloat16)
    return model


def _rows() -> list[Row]:
    return [row for seed in range(2) for row in synthetic(0.5, length=96, seed=seed)]


def _furthest(ours: list[float], theirs: list[float]) -> float:
    """The largest difference, as a share of the largest value."""
    largest = float(np.abs(theirs).max()) or 1.0
    return float(np.abs(np.subtract(ours, theirs)).max()) / largest


if __name__ == "__main__":
    print(json.dumps(trace(Path(sys.argv[1]), *FORMATS["float32"])))
