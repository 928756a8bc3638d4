"""The configuration of a run: its sections (r3l.run.settings) and the sources of their values.

    defaults  <-  demo settings (shipped policy only)  <-  YAML file  <-  key=value overrides

Importing this module imports neither torch nor vllm.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from r3l.algorithms.r3l import R3L
from r3l.algorithms.registry import REGISTRY, AnyAlgorithm
from r3l.algorithms.shared.re_reading import ReReading
from r3l.errors import UserError
from r3l.files import user_file
from r3l.files.checksums import check_text
from r3l.run.evaluation_tags import number_text
from r3l.run.process.endpoints import is_near
from r3l.run.settings.actor import ActorConfig
from r3l.run.settings.buffer import BufferConfig
from r3l.run.settings.buffer_sampling import SamplerConfig
from r3l.run.settings.costs import BudgetConfig, CostConfig
from r3l.run.settings.environment import EnvConfig, by_agent
from r3l.run.settings.evaluation import EvalConfig
from r3l.run.settings.learner import ADAPTERS_LR, LearnerConfig
from r3l.settings import yaml_text
from r3l.settings.error_text import one_line
from r3l.settings.section import Section, in_full

AnySection = TypeVar("AnySection", bound=Section)
NAMED = ("algorithm", "env", "sampler")
"""Sections whose `name` an override may change: see `_keep_for_new_name`."""


class RunConfig(Section):
    """All settings of a run."""

    model: str = Field(
        "builtin",
        description="model folder, name on Hugging Face's hub (org/name[@revision]), GGUF file, "
        "smollm2, or builtin (the shipped tiny policy)",
    )
    seed: int = Field(
        0, ge=0, le=(1 << 32) - 1, description="seed of tasks, sampling and the learner"
    )
    log: tuple[str, ...] = Field(
        ("tensorboard",),
        description="loggers of the metrics: tensorboard, wandb, mlflow, trackio; each as name or "
        "name:target (docs/operations.md)",
    )
    env: EnvConfig = Field(default_factory=lambda: EnvConfig())
    algorithm: AnyAlgorithm = Field(default_factory=lambda: R3L())
    actor: ActorConfig = Field(default_factory=lambda: ActorConfig())
    buffer: BufferConfig = Field(default_factory=lambda: BufferConfig())
    learner: LearnerConfig = Field(default_factory=lambda: LearnerConfig())
    eval: EvalConfig = Field(default_factory=lambda: EvalConfig())
    cost: CostConfig = Field(default_factory=lambda: CostConfig())
    budget: BudgetConfig = Field(default_factory=lambda: BudgetConfig())

    def for_evaluation(self, temperature: float | None = None) -> Self:
        """Returns a copy of these settings with the sampling temperature of an evaluation. Without
        `temperature`, uses the temperature of the evaluation's first part."""
        chosen = self.eval.main_temperature if temperature is None else temperature
        actor = self.actor.model_copy(update={"temperature": chosen})
        return self.model_copy(update={"actor": actor})

    @model_validator(mode="after")
    def _replaced_groups_leave_places(self) -> Self:
        if self.buffer.sampler.replay_no_contrast and not self.algorithm.replaces_groups:
            raise ValueError(
                f"buffer.sampler.replay_no_contrast: {self.algorithm.name} never replaces groups "
                "that lack contrast; use algorithm=dapo"
            )
        return self

    @model_validator(mode="after")
    def _agents_take_no_context(self) -> Self:
        setting = self.algorithm.shows_context
        if self.env.has_agents and setting:
            raise ValueError(
                f"algorithm.{setting}: {self.algorithm.name} begins groups with a context, which "
                f"an agent's attempt cannot read; set algorithm.{setting}=false"
            )
        return self

    @model_validator(mode="after")
    def _agents_are_not_read_again(self) -> Self:
        if self.env.has_agents and isinstance(self.algorithm, ReReading):
            raise ValueError(
                f"algorithm={self.algorithm.name}: reads attempts again with advice, which cannot "
                "be put into the conversations of an agent; choose another algorithm"
            )
        return self

    @model_validator(mode="after")
    def _repeated_prefixes_are_shared(self) -> Self:
        if self.learner.pack == "rows" and self.algorithm.repeats_prefixes:
            raise ValueError(
                f"learner.pack=rows: {self.algorithm.name} makes many rows of each attempt, and "
                "each row would compute their common prefix again; set learner.pack=auto"
            )
        return self

    @model_validator(mode="after")
    def _keys_stay_or_are_encrypted(self) -> Self:
        for env in self.env.each():
            command = str(env.options.get("command", ""))
            plain = by_agent(env.name) and command.startswith("http://") and not is_near(command)
            if plain and not self.actor.agent.plain_http:
                raise ValueError(
                    f"env {env.name}: command {command:.200}: the key of each attempt would leave "
                    "this machine unencrypted; use https, or set actor.agent.plain_http=true on a "
                    "network that only you can reach"
                )
        return self

    @model_validator(mode="after")
    def _an_amount_has_a_price(self) -> Self:
        if self.budget.amount is not None and not self.cost.priced:
            raise ValueError(
                f"budget.amount {self.budget.amount:g}: every price is 0, so it would never be "
                "used up; set cost.per_gpu_hour, cost.per_cpu_hour or cost.per_million_tokens"
            )
        return self

    @model_validator(mode="after")
    def _staleness_reaches_sync(self) -> Self:
        if self.buffer.max_staleness < self.learner.publish_every - 1:
            raise ValueError(
                f"buffer.max_staleness {self.buffer.max_staleness} is less than "
                f"learner.publish_every - 1 = {self.learner.publish_every - 1}: groups would be "
                "stale before they can be drawn; raise max_staleness or lower publish_every"
            )
        return self


def load(
    path: Path | None = None, overrides: Iterable[str] = (), *, demo: Path | None = None
) -> RunConfig:
    """Builds the configuration from a YAML file and `section.key=value` overrides. `demo`: a file
    of defaults for the shipped policy. Raises a one-line UserError."""
    overrides, below = list(overrides), {}
    above: dict[str, Any] = {} if path is None else _read_yaml(path)
    given = apply_overrides(overrides, deepcopy(above))
    if demo is not None:
        below = _read_yaml(demo) if given.get("model", "builtin") == "builtin" else {}
    of_a_run = RunConfig.model_fields.keys() <= above.keys()  # whose file also holds the defaults
    if of_a_run and _has_adapters(given) != _has_adapters(above):
        _drop_default_rate(above)
    config = parse(RunConfig, apply_overrides(overrides, _overlay(below, above)))
    if config.eval.temperatures and any(o.startswith("eval.temperature=") for o in overrides):
        several = ",".join(map(number_text, config.eval.temperatures))
        raise UserError(
            f"override eval.temperature: has no effect with eval.temperatures=[{several}]; set "
            "eval.temperatures instead"
        )
    return config


def apply_overrides(overrides: Iterable[str], tree: dict[str, Any] | None = None) -> dict[str, Any]:
    """Applies `section.key=value` overrides to a tree of plain values, in place; returns it."""
    tree = {} if tree is None else tree
    for override in overrides:
        _apply(tree, override)
    return tree


def parse(section: type[AnySection], tree: Mapping[str, Any]) -> AnySection:
    """Makes a section from plain values. Raises a one-line UserError for a bad key or value."""
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        raise UserError(one_line(section, error)) from None


def dump(config: RunConfig) -> str:
    """Writes the configuration as YAML that `load` reads back."""
    return yaml_text.write(config.model_dump(mode="json"))


def _read_yaml(path: Path) -> dict[str, Any]:
    text = user_file.read_text(path, f"config {path}", "give a YAML file")
    try:
        check_text(text)
    except ValueError as error:
        raise UserError(f"config {path}: damaged ({error})") from None
    tree = yaml_text.parse(text, f"config {path}") or {}
    if not isinstance(tree, dict):
        raise UserError(f"config {path}: the top level must be a mapping of sections")
    return tree


def _overlay(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merges two trees of settings. A setting in `above` replaces the same setting in `below`."""
    merged = dict(below)
    for key, value in above.items():
        was = merged.get(key)
        if key in NAMED:
            was, value = in_full(was), in_full(value)
            if isinstance(was, dict) and isinstance(value, dict) and "name" in value:
                was = _keep_for_new_name(was, key, value["name"])
        if isinstance(was, dict):
            value = was if value is None else value
            value = _overlay(was, value) if isinstance(value, dict) else value
        merged[key] = value
    return merged


def _has_adapters(tree: dict[str, Any]) -> bool:
    learner = tree.get("learner")
    lora = learner.get("lora") if isinstance(learner, dict) else None
    return isinstance(lora, dict) and bool(lora.get("rank"))


def _drop_default_rate(tree: dict[str, Any]) -> None:
    """Removes `learner.lr` from `tree` if it is the default (for adapters, ADAPTERS_LR)."""
    default = ADAPTERS_LR if _has_adapters(tree) else LearnerConfig.model_fields["lr"].default
    learner = tree.get("learner")
    if isinstance(learner, dict) and learner.get("lr") == default:
        del learner["lr"]


def _keep_for_new_name(section: dict[str, Any], key: str, name: Any) -> dict[str, Any]:
    """Returns a section under a new name, with the settings that remain valid.

    A sampler keeps all settings but those of a user's class. An environment loses `options` and
    `others`. If the new environment was in `others`, it gets its options from there. An algorithm
    keeps each setting that the new algorithm also has, unless its value is the old algorithm's
    default.
    """
    was = section.get("name")
    if was in (None, name):
        return section | {"name": name}
    if key == "sampler":
        kept = {k: v for k, v in section.items() if k in SamplerConfig.model_fields and k != "own"}
        return kept | {"name": name}
    if key == "env":
        kept = {k: v for k, v in section.items() if k not in ("options", "others")}
        others = section.get("others")
        own = others.get(name) if isinstance(others, dict) else None
        return kept | {"name": name} | ({} if own is None else {"options": own})
    old, new = (REGISTRY[n].model_fields if n in REGISTRY else {} for n in (was, name))
    both = {k: v for k, v in section.items() if k in old and k in new and v != old[k].default}
    return both | {"name": name}


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"override {override!r:.200}: must look like section.key=value")
    *path, leaf = key.split(".")
    value = yaml_text.parse(text, f"override {override!r:.200}") if text else ""
    if leaf == "name" and path and path[-1] in NAMED and isinstance(value, str):
        *path, leaf = path
    node = tree
    for part in path:
        inner = node.get(part)
        if inner is None or isinstance(inner, str):  # an empty section, or its name alone
            inner = node[part] = {} if inner is None else {"name": inner}
        if not isinstance(inner, dict):
            raise UserError(f"override {override!r:.200}: {part} is not a section")
        node = inner
    if leaf in NAMED and isinstance(value, str) and isinstance(node.get(leaf), dict):
        value = _keep_for_new_name(node[leaf], leaf, value)
    node[leaf] = value
