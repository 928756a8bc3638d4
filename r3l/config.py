"""The configuration model: frozen, every field described with its unit, unknown keys refused.

    defaults  <-  the demo's, for its policy  <-  YAML file (--config)  <-  key=value overrides

Importing this module imports neither torch nor vllm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from r3l.algorithms.r3l import R3LConfig
from r3l.algorithms.registry import REGISTRY, AnyAlgorithm
from r3l.errors import UserError
from r3l.section import Section, in_full
from r3l.settings import yaml_text
from r3l.settings.config_errors import one_line
from r3l.settings.environment import EnvConfig
from r3l.settings.journaling import JournalConfig
from r3l.settings.lora import LoraConfig
from r3l.settings.sampling import ExplorerConfig, SamplerConfig, TaskSamplerConfig
from r3l.settings.uploading import UploadConfig

LONGEST_S = 1e9  # of any time that can be set
Decay = Annotated[float, Field(ge=0, lt=1)]
AnySection = TypeVar("AnySection", bound=Section)
NAMED = ("algorithm", "env", "sampler")
"""Sections that another name replaces: see `_of_name`."""


class ActorConfig(Section):
    """Generation of attempts."""

    concurrent_requests: int = Field(
        64, ge=1, description="requests kept running in the engine; groups are leased to fit"
    )
    temperature: float = Field(
        1.0,
        ge=0.01,  # the least that vLLM samples at; all attempts of a greedy group would be the same
        description="sampling temperature of attempts",
    )
    reflect_temperature: float = Field(1.0, ge=0, description="temperature of reflections")
    max_response_tokens: int | None = Field(
        None, ge=1, description="tokens per response; unset: what the environment declares"
    )
    max_reflection_tokens: int = Field(4096, ge=1, description="tokens per reflection")
    earlier_reasoning: Literal["refuse", "keep"] = Field(
        "refuse",
        description="chat templates that remove the reasoning of earlier replies: refuse them, or "
        "keep the reasoning in the context",
    )
    max_model_len: int = Field(4096, ge=64, description="context length, tokens")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="engine number format; auto: float32 on CPU, bfloat16 on GPU"
    )
    engine: dict[str, Any] = Field(
        default_factory=dict, description="further vLLM engine arguments, passed through"
    )
    engine_timeout_s: float = Field(
        600.0, gt=0, description="an engine silent for so long is considered dead, seconds"
    )
    engine_failures: int = Field(
        3, ge=1, description="engine failures in a row, with no result between, that end the actor"
    )
    restarts: int = Field(
        3, ge=0, description="times each dying actor is started again within an hour"
    )


class RetentionConfig(Section):
    """Which closed groups leave the store: the oldest first, until every limit holds. Unset: no
    limit."""

    groups: int | None = Field(None, ge=0, description="groups kept in the store")
    gib: float | None = Field(None, ge=0, description="size of all results kept, GiB")
    hours: float | None = Field(None, ge=0, description="age of a group, hours")
    versions: int | None = Field(
        None, ge=0, description="age of a group's oldest policy version, optimizer steps"
    )
    grace_s: float = Field(
        600.0,
        ge=0,
        description="seconds a group stays after it was trained or expired; more than the time "
        "between two checkpoints, so that a resumed learner finds its batches",
    )

    @property
    def unlimited(self) -> bool:
        """Whether every group stays."""
        return self.groups is self.gib is self.hours is self.versions is None


class BufferConfig(Section):
    """The group buffer service."""

    restarts: int = Field(
        3, ge=0, description="times a dying service is started again within an hour"
    )
    reply_s: float = Field(
        300.0,
        ge=1,
        le=LONGEST_S,
        description="seconds without a reply after which r3l-launch ends the service and starts it "
        "again; learner and actors wait for it twice as long, as for a slow disk",
    )
    map_gib: float = Field(
        64.0, ge=0.001, le=65536, description="LMDB map size, GiB of address space"
    )
    memory_gib: float = Field(
        2.0,
        ge=0.1,
        le=65536,
        description="memory for messages on their way, GiB; beyond, the connection with the most "
        "of it is closed",
    )
    lease_s: float = Field(
        120.0, ge=0.001, le=LONGEST_S, description="lease length without a heartbeat, seconds"
    )
    draw_s: float = Field(
        3600.0,
        ge=0,
        le=LONGEST_S,
        description="seconds drawn groups are kept for a learner or other consumer that is silent, "
        "more than a step takes; 0: without limit",
    )
    straggler_s: float = Field(
        0.0,
        ge=0,
        le=LONGEST_S,
        description="seconds after which a group no longer waits for its last slots; 0: it waits",
    )
    min_base: int = Field(
        1,
        ge=1,
        le=1024,
        description="base attempts a group needs to be completed without stragglers",
    )
    sampler: SamplerConfig = Field(default_factory=lambda: SamplerConfig())
    tasks: TaskSamplerConfig = Field(default_factory=lambda: TaskSamplerConfig())
    max_staleness: int = Field(
        4,
        ge=0,
        le=1 << 31,
        description="η, how many optimizer steps old the oldest token of a drawn group may be",
    )
    late_groups: Literal["expire", "wait"] = Field(
        "expire",
        description="groups still played that would be stale after another optimizer step: they "
        "expire, or the learner waits for them as long as an actor holds them",
    )
    retention: RetentionConfig = Field(default_factory=lambda: RetentionConfig())

    @property
    def patience_s(self) -> float:
        """How long learner and actors wait for a reply, seconds: a service that was silent for
        `reply_s` is started again meanwhile."""
        return 2 * self.reply_s

    @model_validator(mode="after")
    def _map_holds_what_is_kept(self) -> Self:
        kept = self.retention.gib
        if kept is not None and kept > self.map_gib:
            raise ValueError(
                f"retention.gib {kept:g} is more than map_gib {self.map_gib:g}: the map would be "
                "full before anything is evicted; raise map_gib or lower retention.gib"
            )
        return self


class SafetyRule(Section):
    """One threshold of the safety meter, checked after every optimizer step."""

    metric: Literal["behaviour_kl", "behaviour_ess", "entropy", "grad_clipped"] = Field(
        description="KL (nats a token) and effective sample size (share of tokens) against the "
        "sampling policy, entropy (nats a token), share of the gradient that clipping took away"
    )
    role: Literal["all", "base", "distilled"] = Field(
        "all", description="trajectories it is measured on; grad_clipped has no roles"
    )
    above: float | None = Field(None, description="fires above this value")
    below: float | None = Field(None, description="fires below this value")
    steps: int = Field(1, ge=1, description="steps in a row beyond the threshold before it fires")
    action: Literal["warn", "lower_staleness", "stop"] = Field(
        "warn", description="log a warning, lower max_staleness by one, or end the run"
    )

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        if (self.above is None) == (self.below is None):
            raise ValueError(f"safety rule on {self.metric}: give either above or below")
        if self.metric == "grad_clipped" and self.role != "all":
            raise ValueError("safety rule on grad_clipped: the gradient has no roles; use role all")
        return self


class LearnerConfig(Section):
    """The optimizer and its loop."""

    steps: int = Field(60, ge=0, description="optimizer steps")
    groups_per_step: int = Field(16, ge=1, le=4096, description="B, groups in one optimizer step")
    lr: float = Field(1e-6, gt=0, description="learning rate")
    warmup_steps: int = Field(0, ge=0, description="linear learning-rate warm-up, steps")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay")
    betas: tuple[Decay, Decay] = Field((0.9, 0.95), description="AdamW moment decays")
    grad_clip: float = Field(1.0, gt=0, description="global gradient norm limit")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="how the rate falls from warm-up to the last step"
    )
    min_lr_share: float = Field(
        0.0, ge=0, le=1, description="rate at the last step of a falling schedule, share of lr"
    )
    zero_stage: Literal[0, 1, 2, 3] = Field(
        0, description="DeepSpeed ZeRO stage; bfloat16 uses at least 1"
    )
    offload: Literal["none", "optimizer", "all"] = Field(
        "none",
        description="what waits in host memory: optimizer state (ZeRO 1-3), or parameters too (3)",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="parameter format; auto: float32 on CPU, bfloat16 on GPU"
    )
    lora: LoraConfig = Field(default_factory=lambda: LoraConfig())
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = Field(
        "auto", description="attention of padded rows (pack=rows); auto: what the model chooses"
    )
    gradient_checkpointing: bool = Field(
        False, description="compute activations again in the backward pass to save memory"
    )
    tokens_per_micro_batch: int = Field(
        8192, ge=64, description="computed tokens per micro-batch: padded rows, or tree nodes"
    )
    pack: Literal["auto", "tree", "rows"] = Field(
        "auto",
        description="tree: tokens that rows share are computed once; rows: padded rows; auto: tree "
        "(it pays from about 5 % of shared tokens on), rows if a layer is not full attention",
    )
    sync_every: int = Field(1, ge=1, description="optimizer steps between weight broadcasts")
    anchor_every: int = Field(
        50,
        ge=1,
        description="optimizer steps between versions that actors fetch as a whole, not as patches",
    )
    journal: JournalConfig = Field(default_factory=lambda: JournalConfig())
    checkpoint_every: int = Field(
        50,
        ge=1,
        description="optimizer steps between checkpoints; the first ones are made after 10, 20 and "
        "40 % of so many steps",
    )
    keep_checkpoints: int = Field(2, ge=1, description="newest checkpoints that stay on disk")
    keep_best: bool = Field(
        True,
        description="keep the weights of the best evaluation in best/ (costs two model copies)",
    )
    upload: UploadConfig = Field(default_factory=lambda: UploadConfig())
    bad_steps_in_a_row: int = Field(
        3, ge=1, description="skipped steps (NaN or infinite loss or gradient) that end the run"
    )
    restarts: int = Field(
        3, ge=0, description="times a dying learner is started again within an hour"
    )
    hang_s: float = Field(
        1200.0,
        ge=1,
        le=LONGEST_S,
        description="seconds the start of a learner, a micro-batch, an update, a broadcast or a "
        "checkpoint may take each; a learner silent for longer hangs and is started again",
    )
    safety: tuple[SafetyRule, ...] = Field(
        (
            SafetyRule(metric="behaviour_ess", role="base", below=0.3, steps=3),
            SafetyRule(metric="entropy", below=0.01, steps=3),
        ),
        description="what is done when learner and sampling policy drift apart",
    )
    deepspeed: dict[str, Any] | str = Field(
        default_factory=dict,
        description="further DeepSpeed configuration, merged in: settings, or a JSON file's path",
    )

    @model_validator(mode="after")
    def _packing_brings_its_attention(self) -> Self:
        if self.attention != "auto" and self.pack not in ("auto", "rows"):
            raise ValueError(
                f"attention {self.attention}: pack={self.pack} brings its own; set pack=rows or "
                "attention=auto"
            )
        return self

    def publishes(self, version: int) -> bool:
        """Whether the weights of `version` are offered to the actors."""
        return version % self.sync_every == 0 or version == self.steps

    def saves(self, version: int) -> bool:
        """Whether a checkpoint of `version` is due. The early ones keep most steps of a run that
        dies young, and show soon that the disk has room."""
        tenth = self.checkpoint_every // 10
        early = version > 0 and version in (tenth, 2 * tenth, 4 * tenth)
        return early or version % self.checkpoint_every == 0


class EvalConfig(Section):
    """Evaluation on held-out tasks, played by the actors."""

    every: int = Field(
        20,
        ge=0,
        description="optimizer steps between evaluations; 0: only before the first step and after "
        "the last one",
    )
    tasks: int = Field(
        200,
        ge=0,
        le=4096,
        description="held-out tasks per evaluation; 0: no evaluations",
    )
    temperature: float = Field(0.4, ge=0, description="sampling temperature")


class RunConfig(Section):
    """Everything one run is made of."""

    model: str = Field("builtin", description="model folder, or builtin (the shipped tiny policy)")
    seed: int = Field(
        0, ge=0, le=(1 << 32) - 1, description="seed of tasks, sampling and the learner"
    )
    log: tuple[str, ...] = Field(
        ("tensorboard",),
        description="loggers of the metrics: tensorboard, wandb, mlflow, trackio, prometheus; each "
        "as name or name:target (docs/operations.md)",
    )
    env: EnvConfig = Field(default_factory=lambda: EnvConfig())
    algorithm: AnyAlgorithm = Field(default_factory=lambda: R3LConfig())
    explorer: ExplorerConfig = Field(default_factory=lambda: ExplorerConfig())
    actor: ActorConfig = Field(default_factory=lambda: ActorConfig())
    buffer: BufferConfig = Field(default_factory=lambda: BufferConfig())
    learner: LearnerConfig = Field(default_factory=lambda: LearnerConfig())
    eval: EvalConfig = Field(default_factory=lambda: EvalConfig())

    @model_validator(mode="after")
    def _quorum_fits_the_group(self) -> Self:
        base = self.algorithm.build().plan().base
        if self.buffer.min_base > base:
            raise ValueError(
                f"buffer.min_base {self.buffer.min_base}: a group of {self.algorithm.name} has "
                f"{base} base attempts; lower min_base or raise algorithm.group_size"
            )
        return self

    @model_validator(mode="after")
    def _replaced_groups_leave_places(self) -> Self:
        if self.buffer.sampler.replay_no_contrast and not self.algorithm.needs_contrast:
            raise ValueError(
                f"buffer.sampler.replay_no_contrast: {self.algorithm.name} does not replace groups "
                "without contrast; use algorithm=dapo"
            )
        return self

    @model_validator(mode="after")
    def _staleness_reaches_sync(self) -> Self:
        if self.buffer.max_staleness < self.learner.sync_every - 1:
            raise ValueError(
                f"buffer.max_staleness {self.buffer.max_staleness} is less than "
                f"learner.sync_every - 1 = {self.learner.sync_every - 1}: groups would be stale "
                "before they can be drawn; raise max_staleness or lower sync_every"
            )
        return self


def load(
    path: Path | None = None, overrides: Iterable[str] = (), *, demo: Path | None = None
) -> RunConfig:
    """Build the configuration from a YAML file and `section.key=value` overrides.

    `demo`: settings that come first if the model is the shipped policy. Raises UserError, one line,
    for an unreadable file, an unknown key or a bad value.
    """
    overrides, below = list(overrides), {}
    above: dict[str, Any] = {} if path is None else _read_yaml(path)
    if demo is not None:
        model = tree_of(overrides, deepcopy(above)).get("model", "builtin")
        below = _read_yaml(demo) if model == "builtin" else {}
    return parse(RunConfig, tree_of(overrides, _merged(below, above)))


def tree_of(overrides: Iterable[str], tree: dict[str, Any] | None = None) -> dict[str, Any]:
    """Apply `section.key=value` overrides to a tree of plain values, in place; returns it."""
    tree = {} if tree is None else tree
    for override in overrides:
        _apply(tree, override)
    return tree


def parse(section: type[AnySection], tree: Mapping[str, Any]) -> AnySection:
    """A section from plain values. Raises UserError, one line, for a key or value not allowed."""
    try:
        return section.model_validate(tree)
    except ValidationError as error:
        raise UserError(one_line(section, error)) from None


def dump(config: RunConfig) -> str:
    """The configuration as YAML that `load` reads back to an equal one."""
    return yaml_text.write(config.model_dump(mode="json"))


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"config {path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"config {path}: not UTF-8 text; give a YAML file") from None
    tree = yaml_text.parse(text, f"config {path}") or {}
    if not isinstance(tree, dict):
        raise UserError(f"config {path}: must be a mapping of sections at the top")
    return tree


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """The settings of both; those of `above` count where both have one."""
    merged = dict(below)
    for key, value in above.items():
        was = merged.get(key)
        if key in NAMED:
            was, value = in_full(was), in_full(value)
            if isinstance(was, dict) and isinstance(value, dict) and "name" in value:
                was = _of_name(was, key, value["name"])
        if isinstance(was, dict):
            value = was if value is None else value
            value = _merged(was, value) if isinstance(value, dict) else value
        merged[key] = value
    return merged


def _of_name(section: dict[str, Any], key: str, name: Any) -> dict[str, Any]:
    """What holds of a section under another name: of an environment all but its options and the
    others (one of the others brings its own options), of an algorithm what both have and the first
    one's default is not, for a run's file holds these too.
    """
    was = section.get("name")
    if was in (None, name) or key == "sampler":
        return section | {"name": name}
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
        value = _of_name(node[leaf], leaf, value)
    node[leaf] = value
