"""The bill of a run: what its processes have used, its amount, and the budget that it leaves.

    actors ─► heartbeats ─► buffer: stats ─┐
                    buffer: its CPU time ──┼─► learner: bill.json ─► console, status, report
    learner: trained tokens, its own time ─┘

Each process has an entry of its own, which only grows. So nothing is counted twice after a restart,
and a run that is resumed goes on from its earlier entries.
"""

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

from r3l.run.settings.costs import BudgetConfig, CostConfig

HOUR_S = 3600.0


@dataclass(frozen=True)
class Usage:
    """What a process has used since its start.

    `sampled`, `read`, `trained`: tokens. `read`: given to engines as prompts, including those found
    in a prefix cache. `trained`: in the rows of all steps, prompts included. `cpu_s`: CPU time,
    including that of processes that it started. `gpu_s`: seconds that it ran, times the number of
    its GPUs. `wall_s`: how long a learner ran; 0 for other processes.
    """

    sampled: float = 0.0
    read: float = 0.0
    trained: float = 0.0
    cpu_s: float = 0.0
    gpu_s: float = 0.0
    wall_s: float = 0.0

    @property
    def tokens(self) -> float:
        return self.sampled + self.read + self.trained

    def at_least(self, earlier: "Usage") -> "Usage":
        """Returns the larger value of each field."""
        return Usage(*map(max, astuple(self), astuple(earlier)))


def total(processes: Iterable[Usage]) -> Usage:
    """Adds up what processes have used."""
    columns = zip(*map(astuple, processes), strict=True)
    return Usage(*map(sum, columns))


def amount(used: Usage, cost: CostConfig) -> float:
    """Returns the price of what was used."""
    return (
        cost.per_million_tokens * used.tokens / 1e6
        + cost.per_cpu_hour * used.cpu_s / HOUR_S
        + cost.per_gpu_hour * used.gpu_s / HOUR_S
    )


def against(used: Usage, budget: BudgetConfig, cost: CostConfig) -> dict[str, tuple[float, float]]:
    """Returns (used, limit) for each limit of the budget, keyed by the limit's setting."""
    spent = {"tokens": used.tokens, "hours": used.wall_s / HOUR_S, "amount": amount(used, cost)}
    limits = {name: getattr(budget, name) for name in spent}
    return {
        f"budget.{name}": (spent[name], float(limit))
        for name, limit in limits.items()
        if limit is not None
    }


def spent(used: Usage, budget: BudgetConfig, cost: CostConfig) -> str:
    """Returns which limits of the budget are used up, and by how much; "" if none is."""
    return ", ".join(
        f"{name}={shown(limit)} is used up ({shown(have)})"
        for name, (have, limit) in against(used, budget, cost).items()
        if have >= limit
    )


def larger(used: Usage, budget: BudgetConfig, cost: CostConfig) -> str:
    """Returns the settings that double each limit that is used up."""
    return " ".join(
        f"{name}={2 * max(have, limit):.0f}"
        if name.endswith("tokens")
        else f"{name}={2 * max(have, limit):.3g}"
        for name, (have, limit) in against(used, budget, cost).items()
        if have >= limit
    )


def metrics(used: Usage, cost: CostConfig) -> dict[str, float]:
    """Returns the metrics `bill/…`. There is an amount only if something has a price."""
    values = {
        "bill/sampled_tokens": used.sampled,
        "bill/read_tokens": used.read,
        "bill/trained_tokens": used.trained,
        "bill/cpu_s": used.cpu_s,
        "bill/gpu_s": used.gpu_s,
        "bill/hours": used.wall_s / HOUR_S,
    }
    return values | ({"bill/amount": amount(used, cost)} if cost.priced else {})


def of_metrics(values: Mapping[str, float]) -> Usage:
    """Returns the usage that `metrics` wrote; 0 for values that are missing."""
    return Usage(
        sampled=values.get("bill/sampled_tokens", 0.0),
        read=values.get("bill/read_tokens", 0.0),
        trained=values.get("bill/trained_tokens", 0.0),
        cpu_s=values.get("bill/cpu_s", 0.0),
        gpu_s=values.get("bill/gpu_s", 0.0),
        wall_s=values.get("bill/hours", 0.0) * HOUR_S,
    )


def line(used: Usage, cost: CostConfig) -> str:
    """Formats a bill as one line."""
    parts = [
        f"{used.sampled:,.0f} tokens sampled, {used.read:,.0f} read, {used.trained:,.0f} trained",
        f"{used.wall_s / HOUR_S:.3g} hours, {used.cpu_s / HOUR_S:.3g} of CPU, "
        f"{used.gpu_s / HOUR_S:.3g} of GPU",
    ]
    return "; ".join([*parts, *([f"amount {_price(amount(used, cost))}"] if cost.priced else [])])


def short_line(values: Mapping[str, float]) -> str:
    """Formats the metrics `bill/…` of a step in few words; "" without them."""
    if "bill/sampled_tokens" not in values:
        return ""
    names = ("sampled", "read", "trained")
    tokens = sum(values[f"bill/{name}_tokens"] for name in names)
    price = f" amount {_price(values['bill/amount'])}" if "bill/amount" in values else ""
    return f"used {tokens / 1e6:.2f}M tok{price}"


def _price(value: float) -> str:
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def shown(value: float) -> str:
    """Formats a limit of a budget, or what was used of it."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
