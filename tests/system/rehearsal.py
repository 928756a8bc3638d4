"""A run with the plan of a host of 8 GPUs, on a machine without any.

    python -m tests.system.rehearsal RUN

Buffer, learner ranks and actors are the real ones, started by the supervisor of r3l-launch; the
ranks work on CPUs, and the engines of the actors guess.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from launch.backends.dry_run import table
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import Command
from launch.checks.plan_options import PlanOptions
from launch.preparation import prepare, write_run_folder
from launch.supervisor import Run
from r3l.models.model_path import builtin_policy
from r3l.run.config import load

ACTORS, RANKS, STEPS = 16, 8, 3
SETTINGS = (
    f"env={Path(__file__).parent / 'coin.py'}:Coin", f"model={builtin_policy()}",
    "algorithm.group_size=4", f"learner.steps={STEPS}", "learner.groups_per_step=16",
    "learner.dtype=float32", "learner.tokens_per_micro_batch=1024", "learner.zero_stage=1",
    "actor.concurrent_requests=8", "actor.max_model_len=2048", "actor.max_reflection_tokens=256",
    "eval.tasks=0", "buffer.map_gib=1", "learner.hang_s=600",
)  # fmt: skip


class Rehearsed(ProcessCommands):
    """The commands of the plan, on CPUs."""

    def _places(self) -> Sequence[int | str]:
        return range(self.plan.topology.count)

    def rank(self) -> Command:
        on_cpus = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        rank = super().rank()
        return replace(rank, env=rank.env | on_cpus)

    def actor(self, index: int) -> Command:
        module, actor = {"actors.cli": "tests.system.simulated_actor"}, super().actor(index)
        return replace(actor, words=[module.get(word, word) for word in actor.words])


def main(run: Path) -> int:
    options = PlanOptions(run, ACTORS, f"{RANKS}gpu", dry_run=True, hardware="8x80GB")
    plan = prepare(load(None, SETTINGS), options)
    print(*table(plan), sep="\n", flush=True)
    with write_run_folder(plan):
        return Run(plan, lambda line: print(line, flush=True), Rehearsed(plan)).execute()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
