"""Settings of the group buffer service and of its retention."""

from typing import Self

from pydantic import Field, model_validator

from r3l.run.settings.buffer_sampling import SamplerConfig, TaskSamplerConfig
from r3l.settings.section import LONGEST_S, Section


class RetentionConfig(Section):
    """Limits on the closed groups in the store. The oldest are evicted first. Unset: no limit."""

    groups: int | None = Field(None, ge=0, description="groups kept in the store")
    gib: float | None = Field(None, ge=0, description="size of all results kept, GiB")
    hours: float | None = Field(None, ge=0, description="age of a group, hours")
    versions: int | None = Field(
        None, ge=0, description="age of a group's oldest policy version, optimizer steps"
    )
    grace_s: float = Field(
        600.0,
        ge=0,
        description="seconds that a group stays after it was trained or expired; set more than the "
        "time between two checkpoints, so that a resumed learner finds its batches",
    )

    @property
    def unlimited(self) -> bool:
        """Whether every group is kept."""
        return self.groups is self.gib is self.hours is self.versions is None


class BufferConfig(Section):
    """The group buffer service."""

    restarts: int = Field(
        3, ge=0, description="how often a service that dies is started again within an hour"
    )
    reply_s: float = Field(
        300.0,
        ge=1,
        le=LONGEST_S,
        description="seconds without a reply after which r3l-launch restarts the service; the "
        "learner and actors wait twice as long",
    )
    map_gib: float | None = Field(
        None,
        ge=0.001,
        le=65536,
        description="largest size of the store's file, GiB; unset: it grows as long as its disk "
        "has 64 MiB free",
    )
    archive: str | None = Field(
        None,
        min_length=1,
        description="folder or fsspec address (s3://…) to which groups are moved as Parquet files "
        "once they were closed for retention.grace_s; needs r3l[archive]; unset: off",
    )
    memory_gib: float = Field(
        2.0,
        ge=0.1,
        le=65536,
        description="memory for messages in transit, GiB; if it is full, the connection that uses "
        "most is closed",
    )
    lease_s: float = Field(
        120.0,
        ge=0.001,
        le=LONGEST_S,
        description="seconds without a heartbeat after which a lease ends; an idle actor takes a "
        "group over after a quarter of this time, but not before 10 s",
    )
    draw_s: float = Field(
        3600.0,
        ge=0,
        le=LONGEST_S,
        description="seconds that drawn groups stay reserved for a silent learner or consumer; set "
        "more than a step takes; 0: no limit",
    )
    sampler: SamplerConfig = Field(default_factory=lambda: SamplerConfig())
    task_sampler: TaskSamplerConfig = Field(default_factory=lambda: TaskSamplerConfig())
    max_staleness: int = Field(
        4,
        ge=0,
        le=1 << 31,
        description="η, how many optimizer steps old the oldest token of a drawn group may be",
    )
    recall_imported: bool = Field(
        False,
        description="whether imported attempts are stored attempts of their task, which an "
        "algorithm may recall, plan with and start from",
    )
    retention: RetentionConfig = Field(default_factory=lambda: RetentionConfig())

    @property
    def replay_limit(self) -> int:
        """The age limit for the oldest token of a replayed group, in optimizer steps."""
        limit = self.sampler.replay_staleness
        return self.max_staleness if limit is None else limit

    @property
    def patience_s(self) -> float:
        """How many seconds the learner and actors wait for a reply. Includes time to restart a
        silent service."""
        return 2 * self.reply_s

    @model_validator(mode="after")
    def _map_holds_what_is_kept(self) -> Self:
        kept = self.retention.gib
        if kept is not None and self.map_gib is not None and kept > self.map_gib:
            raise ValueError(
                f"retention.gib {kept:g} is more than map_gib {self.map_gib:g}: the map would be "
                "full before anything is evicted; raise map_gib or lower retention.gib"
            )
        return self
