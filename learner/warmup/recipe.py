"""Defines a warm-up's recipe: its settings, the command that repeats it, and its stored record."""

import json
import shlex
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from envs import registry
from envs.base import Skill
from r3l.models.model_path import model_path
from r3l.rollout.chat import EarlierReasoning
from r3l.rollout.prompts import GuidanceText
from r3l.run.settings.learner import Compute, LearnerConfig, LoraConfig
from r3l.settings import yaml_text

RECORD = "warmup.json"
"""The file in a model's folder that records its warm-up and, once measured, its quality."""

TINY_LR, PRETRAINED_LR, LORA_LR = 3e-3, 2e-5, 2e-4
TINY_STEPS, PRETRAINED_STEPS = 2000, 300
"""The defaults. A high learning rate ruins a pretrained model in one step."""
NOTHING = "nothing"
"""The value of `from` in the record of a policy that was trained from random weights."""


@dataclass(frozen=True)
class Recipe:
    """The settings of a warm-up on `envs`; `resolved` fills in `steps` and `lr`.

    - `options`: the environment's options, allowed only with a single environment
    - `model`: the model to continue from, as in a run's settings; None: a new tiny policy
    - `data`: a file of the user's own conversations, learned too (learner.warmup.lessons)
    - `lora`: rank of the adapters to train and merge; 0: all weights are trained instead
    - `withheld`: the number of rules of each environment that are not taught
    - `certainty`: probability, at each step, that the demonstrator knows a withheld rule
    - `waste`: the share of the demonstrator's actions that do nothing
    - `guidance_text`: what demonstrated retries are shown, as in algorithm.guidance_text. None: a
      tiny policy is shown the advice, as in launch/presets/demo.yaml; any other model is shown the
      report
    - `compute`, `earlier_reasoning`: as in learner.compute and actor.earlier_reasoning
    """

    envs: tuple[str, ...]
    model: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    data: Path | None = None
    steps: int | None = None
    tokens_per_batch: int = 2048
    lr: float | None = None
    lora: int = 0
    compute: Compute = "auto"
    seed: int = 0
    withheld: int = 4
    certainty: float = 0.0
    waste: float = 0.03
    guidance_text: GuidanceText | None = None
    earlier_reasoning: EarlierReasoning = "refuse"

    @cached_property
    def start(self) -> Path | None:
        """The folder of the model to continue from; None if `model` is None. Raises UserError."""
        return None if self.model is None else model_path(self.model)

    @property
    def pretrained(self) -> bool:
        """Whether the model was trained before its first warm-up. Such a model can already copy
        tokens, and gets a low learning rate."""
        start = _start_model(self.start)
        while isinstance(start, dict):
            start = start.get("from", NOTHING)
        return bool(start != NOTHING)

    @property
    def usual_lr(self) -> float:
        """The learning rate of a recipe without `lr`."""
        return (LORA_LR if self.lora else PRETRAINED_LR) if self.pretrained else TINY_LR

    def resolved(self) -> Self:
        """Returns a copy of the recipe, with defaults for `steps`, `lr` and `guidance_text`."""
        steps = PRETRAINED_STEPS if self.pretrained else TINY_STEPS
        text: GuidanceText = self.guidance_text or ("report" if self.pretrained else "advice")
        steps, lr = self.steps or steps, self.lr or self.usual_lr
        return replace(self, steps=steps, lr=lr, guidance_text=text)

    def warning(self) -> str:
        """Returns a warning about the learning rate of a resolved recipe, or ""."""
        times = (self.lr or 0) / self.usual_lr
        if not self.pretrained or times < 10:
            return ""
        return f"--lr {self.lr:g}: {times:.0f} times the usual rate; it may ruin the model"

    @property
    def skill(self) -> Skill:
        return Skill(withheld=self.withheld, waste=self.waste, certainty=self.certainty)

    @property
    def learner(self) -> LearnerConfig:
        """Returns the trainer's settings. The recipe must be `resolved`."""
        assert self.steps is not None and self.lr is not None
        return LearnerConfig(
            lora=LoraConfig(rank=self.lora),
            compute=self.compute,
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
        """Returns the command that makes the folder `out` again."""
        words = ["r3l-learner", "warmup", "--out", str(out)]
        for env in self.envs:
            words += ["--env", env]
        for name, value in self.options.items():
            words += ["--set", f"{name}={_written(value)}"]
        if self.model is not None:
            words += ["--model", self.model]
        for setting in fields(self):
            value = getattr(self, setting.name)
            if setting.name not in ("envs", "options", "model") and value is not None:
                words += [f"--{setting.name.replace('_', '-')}", str(value)]
        return shlex.join(words)

    def record(self, out: Path) -> dict[str, Any]:
        """Describes how the folder `out` was made, as JSON values. Includes the default options of
        each world."""
        worlds = [
            {"env": name, "options": registry.all_options(name, self.options)} for name in self.envs
        ]
        return {
            "command": self.command(out),
            "worlds": worlds,
            "from": _start_model(self.start),
            "steps": self.steps,
            "skill": asdict(self.skill),
            "guidance_text": self.guidance_text,
        }


def _start_model(folder: Path | None) -> Any:
    """Returns the warm-up's record in a model's folder. If the folder has no record, returns the
    folder's path. For None, returns NOTHING."""
    record = folder / RECORD if folder is not None else None
    if record is not None and record.is_file():
        return json.loads(record.read_text(encoding="utf-8"))
    return str(folder or NOTHING)


def _written(value: Any) -> str:
    """Writes an option's value in the form that --set reads."""
    plain = isinstance(value, str) and yaml_text.parse(value, "value") == value
    return value if plain else json.dumps(value)
