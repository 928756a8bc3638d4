"""Settings of the environment, or of several."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from r3l.settings.section import Section


class EnvConfig(Section):
    """The environment and its settings; others may join it in the same run."""

    name: str = Field("workshop", description="environment, by registry name")
    options: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the environment"
    )
    others: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="options of further environments by name; tasks of all of them are played",
    )
    isolation: Literal["auto", "process", "none"] = Field(
        "auto",
        description="where attempts run: in worker processes, inside the actor (none), or as the "
        "environment declares (auto)",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="processes per actor and environment; unset: two, or as many as the wanted "
        "requests need and this machine has cores",
    )
    step_s: float = Field(60.0, gt=0, description="time limit of one reset or step, seconds")
    memory_mib: int = Field(2048, ge=128, description="memory limit of a worker process, MiB")
    train_tasks: int = Field(
        4096,
        ge=1,
        le=10_000_000,
        description="training tasks, those of all environments together; each epoch visits them in "
        "another order",
    )

    @model_validator(mode="after")
    def _no_environment_twice(self) -> Self:
        if self.name in self.others:
            raise ValueError(f"env.others: {self.name} is env.name already; leave it out")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all environments."""
        return (self.name, *self.others)

    @property
    def title(self) -> str:
        """The same, for people."""
        return " + ".join(self.names)

    def each(self) -> tuple[EnvConfig, ...]:
        """The settings of each environment alone."""
        if not self.others:
            return (self,)
        given = {self.name: self.options, **self.others}
        return tuple(
            self.model_copy(update={"name": name, "options": options, "others": {}})
            for name, options in given.items()
        )
