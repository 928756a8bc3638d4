"""RLVMR (arXiv 2507.22844): adds to GRPO a reward for each step's kind of reasoning.

The policy begins a response with one tagged thought, such as `<planning>…</planning>`, and ends it
with `<action>…</action>`. The prompt must ask for this form. u is the reward that a step earns by
its tag. For each tag, mean_u and std_u are taken over the group's steps with this tag:

    Â = (R − mean)/(std + 1e-6)  +  w · (u − mean_u)/(std_u + 1e-6)

    planning      u = 1 if the attempt succeeds
    explore       u = 1 if no earlier tagged step of the attempt took the same action
    reflection    u = 1 if the step before had no tag or an invalid action, and this action differs
    monitor       u = 0, as for responses of another form

The rules and values are from the authors' code (Tencent/DigitalHuman, `core_rlvmr.py`). For a tag
with a single step in the group, the second term is w · u. The authors also penalise responses of
another form. Here this penalty is left to the environment.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from r3l.algorithms import rows
from r3l.algorithms.advantages import STD, Float64, Std, normalized
from r3l.algorithms.batch import Batch
from r3l.algorithms.credit import by_step
from r3l.algorithms.rows import Advantages
from r3l.algorithms.shared.ratio_correction import RatioAlgorithm, kl_weight
from r3l.records import SUCCESS, Trajectory

THOUGHT = re.compile(r"<(planning|explore|reflection|monitor)>([^<]*)</\1>")
ACTION = re.compile(r"<action>([^<]*)</action>")


class RLVMR(RatioAlgorithm):
    """RLVMR: GRPO with the advantages of tagged steps."""

    name: Literal["rlvmr"] = Field("rlvmr", description="algorithm")
    std: Std = Field("sample", description=STD)
    kl_coef: float = kl_weight(0.01)
    step_weight: float = Field(1.0, ge=0, description="w, weight of the steps' own advantages")
    invalid: tuple[str, ...] = Field(
        ("Nothing happens.", "No known action matches that input."),
        description="what the environment answers to an invalid action",
    )

    def token_advantages(self, batch: Batch, found: Sequence[Advantages]) -> list[list[Float64]]:
        """Adds to each attempt's advantage the advantages of its steps."""
        return [
            by_tag(
                rows.plain(values),
                batch.attempts(group),
                weight=self.step_weight,
                std=self.std,
                invalid=self.invalid,
            )
            for group, values in zip(batch.groups, found, strict=True)
        ]


def by_tag(
    advantages: Float64,
    trajectories: Sequence[Trajectory],
    *,
    weight: float,
    std: Std,
    invalid: Sequence[str],
) -> list[Float64]:
    """Adds the reward u of each step to its advantage. Normalizes u for each tag separately."""
    values = [np.full(t.num_steps, a) for t, a in zip(trajectories, advantages, strict=True)]
    steps: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for i, trajectory in enumerate(trajectories):
        for k, (tag, reward) in enumerate(step_rewards(trajectory, invalid)):
            steps[tag].append((i, k, reward))
    for tagged in steps.values():
        rewards = np.array([reward for *_, reward in tagged])
        own = normalized(rewards, std=std) if len(rewards) > 1 else rewards
        for (i, k, _), value in zip(tagged, own.tolist(), strict=True):
            values[i][k] += weight * value
    return [by_step(own, t) for own, t in zip(values, trajectories, strict=True)]


def step_rewards(trajectory: Trajectory, invalid: Sequence[str]) -> list[tuple[str, float]]:
    """Returns the tag and the reward u of each step. A malformed response has the tag ""."""
    found = [_read(text) for text in trajectory.actions]
    answers = trajectory.observations[1:]
    rewards = []
    for k, (tag, action) in enumerate(found):
        match tag:
            case "planning":
                earned = trajectory.reward >= SUCCESS
            case "explore":
                earned = all(action != earlier for other, earlier in found[:k] if other)
            case "reflection":
                missed = k > 0 and (not found[k - 1][0] or _any(invalid, answers[k - 1]))
                earned = missed and action != found[k - 1][1]
            case _:
                earned = False
        rewards.append((tag, float(earned)))
    return rewards


def _read(text: str) -> tuple[str, str]:
    """Returns the tag and the action of a response. The tag is "" if the response is malformed."""
    thoughts, actions = list(THOUGHT.finditer(text)), list(ACTION.finditer(text))
    action = actions[0][1].strip() if len(actions) == 1 else ""
    if not len(thoughts) == len(actions) == 1 or thoughts[0].end() > actions[0].start():
        return "", action
    return (thoughts[0][1] if thoughts[0][2].strip() else "", action)


def _any(phrases: Sequence[str], text: str) -> bool:
    return any(phrase in text for phrase in phrases)
