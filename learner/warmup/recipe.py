"""The recipe of a warm start: its settings, the command that repeats it, and its record in the
folder that it makes."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from envs import registry
from envs.base import Skill
from r3l.errors import UserError
from r3l.rollout.chat import EarlierReasoning
from r3l.settings import yaml_text
from r3l.settings.learner import LearnerConfig

RECORD = "warmup.json"
"""The file of a warmed-up folder that describes how it was made, and its quality."""


@dataclass(frozen=True)
class Recipe:
    """Settings of a warm start on `envs`.

    `options`: those of the environment, if there is only one. `model`: Hugging Face folder to
    continue from; None makes the tiny policy. `withheld`: rules of each world that are not taught;
    the demonstrator knows each with probability `certainty` a step. `waste`: the share of its
    actions that do nothing. `measured`: held-out tasks played at the end.
    `earlier_reasoning`: how to treat a chat template that removes it, as in r3l.rollout.chat.
    """

    envs: tuple[str, ...]
    model: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    steps: int = 2000
    tokens_per_batch: int = 2048
    lr: float = 3e-3
    seed: int = 0
    withheld: int = 4
    certainty: float = 0.0
    waste: float = 0.03
    measured: int = 100
    earlier_reasoning: EarlierReasoning = "refuse"

    @property
    def skill(self) -> Skill:
        """What the demonstrator knows."""
        return Skill(withheld=self.withheld, waste=self.waste, certainty=self.certainty)

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
        """The command that makes the folder `out` again."""
        words = ["r3l-learner", "warmup", "--out", str(out)]
        for env in self.envs:
            words += ["--env", env]
        for name, value in self.options.items():
            words += ["--set", f"{name}={_written(value)}"]
        if self.model is not None:
            words += ["--model", str(self.model)]
        for setting in fields(self):
            if setting.name not in ("envs", "options", "model"):
                option = setting.name.replace("_", "-")
                words += [f"--{option}", str(getattr(self, setting.name))]
        return shlex.join(words)

    def record(self, out: Path) -> dict[str, Any]:
        """How the folder `out` was made, as JSON: the command, the worlds with all their options,
        the settings, and the record of the folder that training continued from."""
        worlds = [
            {"env": name, "options": registry.all_options(name, self.options)} for name in self.envs
        ]
        return {
            "command": self.command(out),
            "worlds": worlds,
            "from": _origin(self.model),
            "steps": self.steps,
            "tokens_per_batch": self.tokens_per_batch,
            "lr": self.lr,
            "seed": self.seed,
            "skill": asdict(self.skill),
        }


class Warmed(NamedTuple):
    """A world that a policy was warmed up for: the environment, all its options, the skill of the
    demonstrator, the measured quality (learner.warmup.quality.Quality; empty if none was), and the
    steps of the warm start."""

    env: str
    options: dict[str, Any]
    skill: Skill
    quality: dict[str, float]
    steps: int


def warmed_for(folder: Path) -> list[Warmed]:
    """The worlds that the policy in `folder` was warmed up for, with all their options
    (envs.registry.all_options). Raises UserError if the record is missing or cannot be read."""
    path = folder / RECORD
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        skill, quality, steps = Skill(**made["skill"]), made["quality"], made["steps"]
        return [
            Warmed(world["env"], world["options"], skill, quality.get(world["env"], {}), steps)
            for world in made["worlds"]
        ]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"{path}: not a record of a warm start ({type(error).__name__}: {error}); "
            "make the folder with r3l-learner warmup"
        ) from None


def _origin(folder: Path | None) -> Any:
    """The record of the folder that training continued from; its path if it has no record."""
    record = folder / RECORD if folder is not None else None
    if record is not None and record.is_file():
        return json.loads(record.read_text(encoding="utf-8"))
    return str(folder or "nothing")


def _written(value: Any) -> str:
    """An option's value in the form that --set reads."""
    plain = isinstance(value, str) and yaml_text.parse(value, "value") == value
    return value if plain else json.dumps(value)
