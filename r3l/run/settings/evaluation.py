"""Settings of the evaluations during a run."""

from pydantic import Field

from r3l.settings.section import Section


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
