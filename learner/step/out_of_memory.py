"""Recognises out-of-memory errors, and chooses a smaller token budget for micro-batches."""

from __future__ import annotations

import torch

from r3l.errors import TrainingStopped

MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC")


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error means that the GPU or the host ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in MESSAGES)


def smaller_budget(budget: int, longest: int) -> int:
    """Halves the token budget, but not below the step's `longest` sequence (tokens). Raises
    TrainingStopped if the budget cannot be lowered further."""
    if budget <= longest:
        raise TrainingStopped(
            f"out of memory at the smallest micro-batch: {budget} tokens per micro-batch, longest "
            f"sequence {longest} tokens; use more ranks, learner.zero_stage=3, "
            "learner.offload=optimizer, learner.gradient_checkpointing=true or shorter contexts",
            cause="out_of_memory",
            tokens_per_micro_batch=budget,
            longest=longest,
        )
    return max(budget // 2, longest)
