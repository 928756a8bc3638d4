"""Out of memory: how it is recognised, and the smaller token budget that is kept.

A learner that had to halve its token budget per micro-batch writes the new one into the run
folder, so that the next start begins with it.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import torch

from r3l.errors import TrainingStopped, UserError

LIMITS = "limits.json"
MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory, of a GPU or of the host, is used up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in MESSAGES)


def smaller_budget(budget: int, longest: int) -> int:
    """Half the token budget, but room for the `longest` sequence (tokens) of the step.

    Raises TrainingStopped if the budget cannot be cut any further.
    """
    if budget <= longest:
        raise TrainingStopped(
            f"out of memory at the smallest micro-batch: {budget} tokens a micro-batch, longest "
            f"sequence {longest} tokens; use more ranks, learner.zero_stage=3, "
            "learner.offload=optimizer, learner.gradient_checkpointing=true or shorter contexts",
            cause="out_of_memory",
            tokens_per_micro_batch=budget,
            longest=longest,
        )
    return max(budget // 2, longest)


def kept_budget(run: Path, configured: int) -> int:
    """The token budget to start with: as configured, or as an earlier start had to lower it.
    Raises UserError if the file cannot be read."""
    path = run / LIMITS
    if not path.is_file():
        return configured
    try:
        kept = int(json.loads(path.read_bytes())["tokens_per_micro_batch"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UserError(
            f"{path}: holds no token budget ({error!r:.80}); delete the file to begin with the "
            f"configured {configured}"
        ) from None
    return min(configured, kept)


def keep_budget(run: Path, budget: int) -> None:
    """Record a lowered budget; several ranks may do so at the same time. Deleting the file brings
    back the configured one."""
    building = run / f".{LIMITS}-{uuid.uuid4().hex}"
    building.write_text(json.dumps({"tokens_per_micro_batch": budget}) + "\n", encoding="utf-8")
    building.replace(run / LIMITS)
