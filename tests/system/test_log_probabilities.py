"""The engine and the learner on one model: the log-probabilities that one stores are those that the
other computes, at every temperature, of an agent's calls and of a retry's."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.agents.agent_attempt import agents_served
from envs.isolation.pool import environments_of_all
from envs.registry import make, tasks, tasks_of_all
from learner.step.deepspeed_trainer import DeepSpeedTrainer
from r3l import codec
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import Row
from r3l.errors import EngineFailed
from r3l.models.model_path import builtin_policy
from r3l.records import Group, GroupPlan, SlotResult
from r3l.rollout.group import explore_group
from r3l.rollout.policy_interface import SampleParams
from r3l.run.config import RunConfig, load
from r3l.run.settings.learner import LearnerConfig
from tests.actors.fakes import PROMPT, Served
from tests.r3l.rollout.fakes import exploration

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "tests" / "actors" / "agents" / "stdlib_agent.py"
GRPO = load(None, ["algorithm=grpo", "algorithm.group_size=4"])  # has a reference model


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    served = Served(builtin_policy())
    yield served
    served.close()


@pytest.fixture(scope="module")
def trainer() -> DeepSpeedTrainer:
    unmoved = LearnerConfig(lr=1e-12)
    return DeepSpeedTrainer(builtin_policy(), unmoved, needs=GRPO.algorithm.needs)


def sampled(served: Served, trainer: DeepSpeedTrainer, temperature: float) -> list[Row]:
    """The rows of some groups that were sampled at a temperature, and written and read since."""
    config = load(None, ["algorithm=grpo", "algorithm.group_size=4", f"actor.{temperature=}"])
    algorithm = config.algorithm

    async def explore() -> list[Group]:
        groups = []
        for number, task in enumerate(tasks("workshop", {}, "train", 6)):
            x = exploration(served.policy, config, task, lambda task: make("workshop"), seed=number)
            results = await explore_group(algorithm.explore, x)
            read = tuple(codec.decode(SlotResult, codec.encode(result)) for result in results)
            groups.append(Group(f"g{number}", task, x.plan, "complete", read))
        return groups

    groups = served.run(explore())
    assert {t.temperature for group in groups for t in group.trajectories} == {temperature}
    batch = Batch(groups)
    return algorithm.rows(trainer.answer(batch, algorithm.queries(batch)))


def measured(trainer: DeepSpeedTrainer, rows: list[Row]) -> dict[str, float]:
    return trainer.step(rows, GRPO.algorithm.loss).metrics


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_the_learner_computes_the_stored_log_probabilities_at_any_temperature(
    served: Served, trainer: DeepSpeedTrainer, temperature: float
) -> None:
    rows = sampled(served, trainer, temperature)
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


def config_of(folder: Path, mood: str) -> RunConfig:
    tasks = folder / "tasks.jsonl"
    asked = [{"id": n, "question": "use saw", "answer": "use", "mood": mood} for n in range(8)]
    tasks.write_text("\n".join(map(json.dumps, asked)))
    given = {"command": f"python {AGENT}", "tasks": str(tasks)}
    return load(
        None,
        [
            "env=agent",
            f"env.options={json.dumps(given)}",
            "algorithm=grpo",
            "actor.max_response_tokens=24",
        ],
    )


def explored(
    served: Served, config: RunConfig, plan: GroupPlan, count: int
) -> list[list[SlotResult]]:
    """Explores groups of tasks of agents, one after the other. With one attempt in each, the
    engine's batches, and so its rounding, are the same every time."""

    async def explore() -> list[list[SlotResult]]:
        tasks = tasks_of_all(config.env, "train", count)
        async with (
            environments_of_all(config.env, count) as made,
            agents_served(made, config, served.policy) as make_env,
        ):
            groups = (exploration(served.policy, config, t, make_env, plan=plan) for t in tasks)
            return [await explore_group(config.algorithm.explore, x) for x in groups]

    return served.run(explore())


def learned(token_ids: Any) -> Any:
    """Computes the log-probability of each token after the first, as the learner does."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(builtin_policy(), dtype=torch.float32)
    ids = torch.tensor(token_ids[None].astype(np.int64))
    with torch.no_grad():
        logits = model(ids).logits[0, :-1].double().log_softmax(-1)
    return logits.gather(1, ids[0, 1:, None])[:, 0].numpy()


@pytest.mark.parametrize(
    ("mood", "conversations"), [("", 1), ("forks", 2)], ids=["chain", "fork with a tool"]
)
def test_the_learner_computes_the_log_probabilities_that_are_stored_of_an_agent(
    served: Served, tmp_path: Path, mood: str, conversations: int
) -> None:
    groups = explored(served, config_of(tmp_path, mood), GroupPlan(1), 8)
    results = [result for group in groups for result in group]
    assert results
    for result in results:
        played = result.trajectory
        assert played is not None and played.num_steps == 2, result.cause
        assert len(played.conversations()) == conversations
        for sequence in played.conversations():
            mine = learned(sequence.token_ids)
            for start, end in sequence.step_spans.tolist():
                gap = np.abs(mine[start - 1 : end - 1] - sequence.logprobs[start:end]).max()
                assert gap < 1e-5, gap


def test_a_retry_has_the_tokens_of_its_base_and_samples_with_the_guidance(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    short = "actor.max_reflection_tokens=192"
    example = ROOT / "examples" / "agents" / "workshop_r3l.yaml"
    groups = explored(served, load(example, [short]), GroupPlan(2), 24)
    compared = 0
    for first, second in groups:
        assert second.cause != "replay_diverged"
        base, retry = first.trajectory, second.trajectory
        if base is None or retry is None:
            continue
        end = int(base.step_spans[retry.pivot - 1, 1]) if retry.pivot else 0
        assert np.array_equal(base.token_ids[:end], retry.token_ids[:end])
        assert retry.of == base.slot and retry.shown is not None
        known = retry.logprobs[retry.responses_from(retry.pivot)]
        ids, mask = retry.as_shown()
        assert np.abs(learned(ids)[mask[1:]] - known).max() < 1e-5
        compared += 1
    assert compared, [(result.role, result.status, result.cause) for g in groups for result in g]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_engine_scores_given_tokens_as_the_learner_computes_them_at_temperature_1(
    served: Served, temperature: float
) -> None:
    """Also beside a request of another temperature, and if the cache knows all of them."""

    async def ask() -> tuple[list[int], tuple[float, ...]]:
        policy = served.policy
        other = asyncio.create_task(policy.sample(PROMPT, SampleParams(9, temperature, seed=1)))
        sample = await policy.sample(PROMPT, SampleParams(9, 1.0, seed=2))
        ids = [*PROMPT, *sample.token_ids]
        first, again = await policy.score(ids, len(PROMPT)), await policy.score(ids, len(PROMPT))
        await other
        assert first == pytest.approx(again, abs=1e-6) and len(first) == len(sample.token_ids)
        assert first == pytest.approx(sample.logprobs, abs=1e-4)
        return ids, first

    ids, scores = served.run(ask())
    mine = learned(np.array(ids))[len(PROMPT) - 1 :]
    assert np.abs(mine - np.array(scores)).max() < 1e-5
    with pytest.raises(EngineFailed, match="do not fit the context"):
        served.run(served.policy.score([5] * served.policy.context_length, 1))
