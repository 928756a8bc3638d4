"""Settings of the samplers of groups and of tasks (buffer.sampling)."""

from typing import Any, Self

from pydantic import Field, model_validator

from r3l.settings.section import Section, in_full


class SamplerConfig(Section):
    """Chooses which complete groups are drawn, and how often. Only the sampler `prioritised` uses
    alpha, beta and decay."""

    name: str = Field("fifo", description="sampler, by registry name")
    reuse: int = Field(1, ge=1, description="optimizer steps a group may be trained in")
    cooldown: int = Field(
        0, ge=0, description="optimizer steps that pass before a group is trained again"
    )
    replay_share: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of a batch for groups that were trained before, if there are enough; "
        "unset: old and new groups compete for every place",
    )
    replay_no_contrast: bool = Field(
        False,
        description="fill the places of replaced groups (dapo: equal rewards) with groups that "
        "were trained before, if there are any",
    )
    replay_staleness: int | None = Field(
        None,
        ge=0,
        le=1 << 31,
        description="how many optimizer steps old the oldest token of a replayed group may be; "
        "unset: max_staleness",
    )
    alpha: float = Field(
        1.0, ge=0, le=5, description="exponent of the priority, the spread of a group's rewards"
    )
    beta: float = Field(1.0, ge=0, le=1, description="exponent of the importance weight")
    decay: float = Field(
        0.0, ge=0, le=1, description="share of its priority that a group loses with each use"
    )
    own: dict[str, Any] = Field(
        default_factory=dict,
        description="settings that a sampler class of your own declares; they may also stand "
        "beside `name`",
    )

    @model_validator(mode="before")
    @classmethod
    def _own_settings(cls, value: Any) -> Any:
        """If the class is the user's, moves the settings that no sampler of r3l has to `own`."""
        value = in_full(value)
        if not isinstance(value, dict) or ".py:" not in str(value.get("name", "")):
            return value
        more = {key: each for key, each in value.items() if key not in cls.model_fields}
        own = value.get("own") or {}
        if not more or not isinstance(own, dict):
            return value
        kept = {key: each for key, each in value.items() if key in cls.model_fields}
        return kept | {"own": own | more}

    @model_validator(mode="after")
    def _only_a_users_class_has_own(self) -> Self:
        if self.own and ".py:" not in self.name:
            raise ValueError(
                f"own: the sampler {self.name} has no settings of its own; remove own, or name a "
                "class of yours, path/to/file.py:Class"
            )
        return self

    @model_validator(mode="after")
    def _one_count_of_replays(self) -> Self:
        if self.replay_no_contrast and self.replay_share is not None:
            raise ValueError(
                "replay_no_contrast and replay_share both set how many groups of a batch are "
                "replayed, so they exclude each other; remove one of them"
            )
        return self


class TaskSamplerConfig(Section):
    """Chooses the next training task. Only `curriculum` uses candidates, target and decay."""

    name: str = Field("shuffled", description="task sampler, by registry name")
    candidates: int = Field(
        16, ge=1, le=1024, description="random tasks from which the next one is chosen"
    )
    target: float = Field(0.5, ge=0, le=1, description="target success rate")
    decay: float = Field(
        0.7, ge=0, le=1, description="weight of a task's group, relative to its next newer group"
    )
