"""Checks that a run's budget has room for a step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple

from envs.preflight import FirstStep
from launch.topology.placement import Topology
from r3l.errors import UserError
from r3l.run import bill
from r3l.run.bill import Usage
from r3l.run.config import RunConfig
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import RunFolder

RECENT = 10  # steps over which the use of a step is averaged


def check_what_is_left(config: RunConfig, run: RunFolder) -> None:
    """Refuses to resume a run if its budget is used up, or if less is left than its last steps took
    on average."""
    of = (config.budget, config.cost)
    steps = bill.against(_of_a_step(run.last_steps(RECENT)), *of)
    for name, (have, limit) in bill.against(bill.total(run.bill().values()), *of).items():
        step, _ = steps[name]
        if limit <= have or limit < have + step:
            least = have + max(step, 0.01 * have)
            least = math.ceil(least) if name == "budget.tokens" else least  # a whole number
            takes = f", and a step takes about {bill.shown(step)}" if step else ""
            raise UserError(
                f"{name}={bill.shown(limit)}: {bill.shown(have)} of it are used{takes}; give at "
                f"least {_rounded_up(least)}, or {name}=null for no limit"
            )


def check_amount_is_used(config: RunConfig, topology: Topology) -> None:
    """Refuses an amount for a run without GPUs if nothing else has a price. Actors that join later
    may have GPUs, so a run without actors of its own is accepted."""
    cost, amount = config.cost, config.budget.amount
    if amount is None or cost.per_cpu_hour or cost.per_million_tokens or not topology.actors:
        return
    used = [place.gpus for place in topology.actors] + [local.gpus for local in topology.ranks]
    if not any(used):
        raise UserError(
            f"budget.amount={amount:g}: only GPUs have a price, and this run has none, so it would "
            "never be used up; set cost.per_cpu_hour or cost.per_million_tokens"
        )


def check_first_step_fits(config: RunConfig, steps: Mapping[str, FirstStep]) -> None:
    """Refuses a budget that is too small to read each prompt of one optimizer step once and answer
    it with one token. How many hours a step takes is not known in advance. `steps`: keyed by task
    id."""
    if not config.learner.steps or not steps:
        return
    bases = (config.algorithm.group_size + 1) // 2  # the other slots may be of retries
    attempts = config.learner.groups_per_step * bases
    shortest = min(step.prompt for step in steps.values())
    least = Usage(sampled=attempts, read=attempts * shortest)
    for name, (takes, limit) in bill.against(least, config.budget, config.cost).items():
        if limit < takes:
            raise UserError(
                f"{name}={bill.shown(limit)}: a step takes {bill.shown(takes)} or more: {attempts} "
                f"attempts with prompts of {shortest} tokens or more; raise it, or lower "
                "learner.groups_per_step"
            )


def _of_a_step(steps: Sequence[StepLine]) -> Usage:
    """Returns what a step used on average; nothing if that is not known. Its amount is not taken
    from the lines, since prices may have changed."""
    known = [bill.of_metrics(s.metrics) for s in steps if "bill/sampled_tokens" in s.metrics]
    if len(known) < 2:
        return Usage()
    first, last = (astuple(each) for each in (known[0], known[-1]))
    return Usage(*(max(b - a, 0.0) / (len(known) - 1) for a, b in zip(first, last, strict=True)))


def _rounded_up(limit: float) -> str:
    """Formats a limit as `shown` does, but never below its value."""
    text = bill.shown(limit)
    if float(text) >= limit:
        return text
    digits = max(2 - math.floor(math.log10(limit)), 0)
    return bill.shown(math.ceil(limit * 10**digits) / 10**digits)
