"""Settings of the environments."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from r3l.settings.section import Section


def by_agent(name: str) -> bool:
    """Whether an agent plays the attempts of the environment with this name."""
    return name == "agent" or name.startswith("verifiers:")


class EnvConfig(Section):
    """The environment and its settings. A run may have several environments."""

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
        description="processes per actor and environment; unset: as many as the requests need, at "
        "least two, at most one per core",
    )
    step_s: float = Field(60.0, gt=0, description="time limit of one reset or step, seconds")
    memory_mib: int = Field(2048, ge=128, description="memory limit of a worker process, MiB")
    pass_environment: tuple[str, ...] = Field(
        (),
        description="environment variables with keys, tokens or passwords that environments, "
        "agents and graders get, as patterns such as HF_TOKEN; they get no others. Also those that "
        "name folders of caches which attempts share, such as CREWAI_STORAGE_DIR",
    )
    train_tasks: int = Field(
        4096,
        ge=1,
        le=10_000_000,
        description="training tasks of all environments together; every epoch has its own order",
    )

    @model_validator(mode="after")
    def _no_environment_twice(self) -> Self:
        if self.name in self.others:
            raise ValueError(f"env.others: {self.name} is already env.name; leave it out")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.others)

    @property
    def has_agents(self) -> bool:
        """Whether at least one of the environments is played by an agent."""
        return any(by_agent(name) for name in self.names)

    @property
    def title(self) -> str:
        """The names of all environments, in one line, without folders of absolute paths."""
        return " + ".join(Path(n).name if Path(n).is_absolute() else n for n in self.names)

    def each(self) -> tuple[Self, ...]:
        """Splits the settings into one EnvConfig for each environment."""
        if not self.others:
            return (self,)
        given = {self.name: self.options, **self.others}
        return tuple(
            self.model_copy(update={"name": name, "options": options, "others": {}})
            for name, options in given.items()
        )
