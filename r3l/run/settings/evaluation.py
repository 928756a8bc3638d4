"""Settings of the evaluations during a run."""

from typing import Annotated

from pydantic import Field, field_validator

from r3l.settings.section import Section

Temperature = Annotated[float, Field(ge=0, le=2)]


class EvalConfig(Section):
    """Evaluation on held-out tasks, played by the actors."""

    every: int = Field(
        20,
        ge=0,
        description="optimizer steps between evaluations; 0: only the first and the last weights "
        "are evaluated",
    )
    tasks: int = Field(
        200, ge=0, le=4096, description="held-out tasks per evaluation; 0: no evaluations"
    )
    temperature: float = Field(0.4, ge=0, le=2, description="sampling temperature")
    temperatures: tuple[Temperature, ...] = Field(
        (),
        description="several sampling temperatures in place of `temperature`; the tasks are played "
        "at each, and the first decides which model is the best",
    )
    exact: bool = Field(
        False,
        description="also measure the exact probability of the right answers, at temperature 1; "
        "only for environments that list them",
    )

    @field_validator("temperatures")
    @classmethod
    def _each_once(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if len(set(values)) < len(values):
            raise ValueError("names a temperature twice; name each once")
        return values

    @property
    def main_temperature(self) -> float:
        """The temperature of the evaluation's first part."""
        return self.temperatures[0] if self.temperatures else self.temperature

    @property
    def further_temperatures(self) -> tuple[float, ...]:
        """The temperatures of the evaluation's further parts."""
        return self.temperatures[1:]
