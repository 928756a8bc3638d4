"""What is measured, the most valuable first."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Job:
    """One engine: a model size, the learner's settings, and the measures made on it in turn. A job
    without a size makes its own engines. It is ended after `limit_s`."""

    name: str
    size: str
    measures: tuple[str, ...]
    settings: tuple[str, ...] = ()
    limit_s: float = 120.0

    def only(self, measures: str) -> Job:
        """The job with some of its measures, separated by commas; all of them if empty."""
        wanted = measures.split(",") if measures else self.measures
        return replace(self, measures=tuple(name for name in self.measures if name in wanted))


_JOBS = (
    Job(
        "0.5b zero 1",
        "0.5b",
        ("card", "ways", "budgets", "profile", "transfer", "patches", "checkpoint"),
        ("learner.zero_stage=1",),
    ),
    Job("agreement", "", ("agreement", "attentions", "resume")),
    Job(
        "1.5b zero 1",
        "1.5b",
        ("ways", "budgets", "profile", "transfer", "patches", "checkpoint", "out_of_memory"),
        ("learner.zero_stage=1",),
        200.0,
    ),
    Job("0.5b zero 2", "0.5b", ("ways",), ("learner.zero_stage=2",)),
    Job("0.5b zero 3", "0.5b", ("ways",), ("learner.zero_stage=3",)),
    Job("0.5b zero 0 float32", "0.5b", ("ways",), ("learner.dtype=float32",)),
    Job("1.5b zero 2", "1.5b", ("ways", "two_groups", "out_of_memory"), ("learner.zero_stage=2",)),
    Job("1.5b zero 3", "1.5b", ("ways", "two_groups"), ("learner.zero_stage=3",)),
    Job(
        "1.5b checkpointing",
        "1.5b",
        ("ways", "budgets"),
        ("learner.zero_stage=1", "learner.gradient_checkpointing=true"),
    ),
    Job(
        "7b lora",
        "7b",
        ("ways", "patches"),
        ("learner.zero_stage=1", "learner.lora.rank=16", "learner.gradient_checkpointing=true"),
    ),
    Job("0.5b grpo", "0.5b", ("ways",), ("learner.zero_stage=1", "algorithm=grpo")),
    Job(
        "0.5b workshop",
        "0.5b",
        ("workshop",),
        ("learner.zero_stage=1", "algorithm.sft_share=null"),
    ),
    Job(
        "1.5b offload",
        "1.5b",
        ("ways",),
        ("learner.zero_stage=2", "learner.offload=optimizer"),
    ),
)
JOBS = {job.name: job for job in _JOBS}
"""The jobs by name, in the order in which they run."""
