"""Settings for the prices and the budget of a run."""

from pydantic import Field

from r3l.settings.section import Section


class CostConfig(Section):
    """Prices, in any one currency. A run's amount is its tokens and hours at these prices."""

    per_gpu_hour: float = Field(0.0, ge=0, description="price of one GPU for an hour")
    per_cpu_hour: float = Field(0.0, ge=0, description="price of an hour of CPU time, on one core")
    per_million_tokens: float = Field(
        0.0, ge=0, description="price of a million tokens, whether sampled, read or trained"
    )

    @property
    def priced(self) -> bool:
        """Whether anything has a price."""
        return bool(self.per_gpu_hour or self.per_cpu_hour or self.per_million_tokens)


class BudgetConfig(Section):
    """What a run may use, with all its restarts and resumes. Once that is used up, the run finishes
    the step under way, saves a checkpoint and ends. Unset: no limit."""

    tokens: int | None = Field(None, gt=0, description="tokens sampled, read and trained, together")
    hours: float | None = Field(None, gt=0, description="hours in which the learner runs or waits")
    amount: float | None = Field(None, gt=0, description="amount at the prices of `cost`")
