"""The engine and the learner at one temperature: the log-probabilities that one stores are those
that the other computes."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from envs.builtin.policy import builtin_policy
from envs.registry import make, tasks
from learner.step.batch import Row, rows_of
from learner.step.trainer import Trainer
from r3l import codec
from r3l.config import load
from r3l.records import Group, SlotResult
from r3l.rollout.group import explore_group
from r3l.rollout.interfaces import SampleParams
from r3l.settings.learner import LearnerConfig
from tests.actors.fakes import PROMPT, Served

pytestmark = pytest.mark.system

GRPO = load(None, ["algorithm=grpo", "algorithm.group_size=4"])  # has a reference model


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served(builtin_policy())
    yield served
    served.close()


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    unmoved = LearnerConfig(lr=1e-12)
    return Trainer(builtin_policy(), unmoved, GRPO.algorithm.build())


def sampled(served: Served, temperature: float) -> list[Row]:
    """The rows of some groups that were sampled at a temperature, and written and read since."""
    config = load(None, ["algorithm=grpo", "algorithm.group_size=4", f"actor.{temperature=}"])
    algorithm = config.algorithm.build()

    async def explore() -> list[Group]:
        groups = []
        for number, task in enumerate(tasks("workshop", {}, "train", 6)):
            results = await explore_group(
                task, served.policy, lambda: make("workshop"), config, seed=number
            )
            read = tuple(codec.decode(SlotResult, codec.encode(result)) for result in results)
            groups.append(Group(f"g{number}", task, algorithm.plan(), "complete", read))
        return groups

    groups = served.run(explore())
    assert {t.temperature for group in groups for t in group.trajectories} == {temperature}
    return rows_of(groups, algorithm)


def measured(trainer: Trainer, rows: list[Row]) -> dict[str, float]:
    return trainer.step(rows).metrics


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_the_learner_computes_the_stored_log_probabilities_at_any_temperature(
    served: Served, trainer: Trainer, temperature: float
) -> None:
    rows = sampled(served, temperature)
    metrics = measured(trainer, rows)
    tokens = sum(int(row.mask.sum()) for row in rows)
    assert tokens > 300 and abs(metrics["learner/behaviour_kl"]) < 1e-4
    assert metrics["learner/behaviour_ess"] > 0.999
    assert abs(metrics["learner/kl_reference"]) < 1e-6, "of equal weights"
    if temperature != 1.0:
        undivided = measured(trainer, [replace(row, temperature=1.0) for row in rows])
        assert undivided["learner/behaviour_kl"] > 3e-4


def test_a_greedy_token_has_its_log_probability_at_temperature_1(served: Served) -> None:
    async def ask() -> list[float]:
        policy = served.policy
        # Beside one that is drawn: vLLM divides the logits of such a batch by temperatures.
        other = asyncio.create_task(policy.sample(PROMPT, SampleParams(4, 0.5, seed=1)))
        greedy = await policy.sample(PROMPT, SampleParams(4, 0.0))
        await other
        alone = await served.ask_logits()
        assert greedy.logprobs[0] == pytest.approx(alone[greedy.token_ids[0]], abs=1e-4)
        return list(alone.values())

    assert max(served.run(ask())) < 0.0
