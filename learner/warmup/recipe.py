"""The recipe of a warm start: its settings, and the command line that repeats it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envs.base import Skill
from r3l.config import LearnerConfig
from r3l.rollout.chat import EarlierReasoning


@dataclass(frozen=True)
class Recipe:
    """Settings of a warm start on `envs`.

    `model`: a Hugging Face folder to continue from; None makes the tiny policy. `withheld` rules
    of each world are not taught, and a share `waste` of the demonstrator's actions is useless.
    `measured` held-out tasks are played at the end (0: none). `earlier_reasoning`: how to treat a
    chat template that removes it, as in r3l.rollout.chat.
    """

    envs: tuple[str, ...]
    model: Path | None = None
    steps: int = 2000
    tokens_per_batch: int = 2048
    lr: float = 3e-3
    seed: int = 0
    withheld: int = 4
    waste: float = 0.03
    measured: int = 100
    earlier_reasoning: EarlierReasoning = "refuse"

    @property
    def skill(self) -> Skill:
        """What the demonstrator knows."""
        return Skill(withheld=self.withheld, waste=self.waste)

    @property
    def learner(self) -> LearnerConfig:
        """The settings of the trainer."""
        return LearnerConfig(
            lr=self.lr,
            steps=self.steps,
            betas=(0.9, 0.98),
            weight_decay=0.01,
            warmup_steps=max(1, self.steps // 20),
            schedule="linear",
            min_lr_share=0.1,
            tokens_per_micro_batch=self.tokens_per_batch,
        )

    def command(self, out: Path) -> str:
        """The command line that makes the folder `out` again."""
        names = " ".join(f"--env {name}" for name in self.envs)
        start = f" --model {self.model}" if self.model is not None else ""
        keeping = self.earlier_reasoning != "refuse"
        keep = f" --earlier-reasoning {self.earlier_reasoning}" if keeping else ""
        return (
            f"r3l-learner warmup {names}{start} --out {out} --steps {self.steps} "
            f"--tokens-per-batch {self.tokens_per_batch} --lr {self.lr:g} --seed {self.seed} "
            f"--withheld {self.withheld}{keep}"
        )
