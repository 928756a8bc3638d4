"""Every algorithm, from drawn groups to the gradient of a model, against a slow reference.

Random groups hold what real ones do: slots that failed or were skipped, single attempts, equal
rewards, pivots at the first and the last step, empty responses, reflections, guidance that the
retries read, attempts of several temperatures.
"""

import copy
from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from r3l.algorithms import registry
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.credit import Normalize
from r3l.algorithms.rows import POLICY, Row
from r3l.algorithms.shared.reflect_and_retry import ReflectAndRetry
from r3l.records import (
    Group,
    GroupPlan,
    ReflectionRecord,
    Shown,
    SlotResult,
    Task,
    Trajectory,
    done,
)
from r3l.training.answers import Answers
from r3l.training.micro_batch import MicroBatch, collate, micro_batches
from r3l.training.model import PolicyModule, Scores
from r3l.training.step_loss import step_loss
from tests.learner.step import reference

VOCAB = 40
REWARDS = ([0.0], [0.0, 1.0], [0.0, 0.3, 0.5, 1.0], [1.0], [-0.5, 0.0, 2.0], [0.7], [1.0, 1.5])
SETTINGS: list[dict[str, Any]] = [
    {"name": "r3l"},
    {"name": "r3l", "sft_share": 0.25},
    {"name": "r3l", "sft_share": 0.1},
    {"name": "r3l", "sft_share": 0.05},
    {"name": "r3l", "sft_share": 0.1, "sft_pool": "shared"},
    {"name": "r3l", "alpha": 1.7, "normalize": "token"},
    {"name": "r3l", "max_rule": "group_max", "sft_weight": 0.3},
    {"name": "r3l", "max_advantage": 1.0, "credit": False},
    {"name": "r3l", "amplify": False},
    {"name": "r3l", "reflect": False},
    {"name": "r3l", "verified_requires_success": False},
    *({"name": name} for name in sorted(registry.REGISTRY) if name != "r3l"),
    {"name": "critique_grpo", "normalize": "token"},
    {"name": "grpo", "std": "sample"},
    {"name": "rloo", "clip": True, "normalize": "attempt"},
    {"name": "critique_grpo", "std": "none", "normalize": "sum", "clip": False},
    {"name": "dapo", "filter": False, "kl_coef": 0.01},
    {"name": "dapo", "filter": False, "overlong_limit": 9, "overlong_buffer": 6},
    {"name": "r3l", "normalize": "attempt"},
    {"name": "r3l", "normalize": "group"},
    {"name": "r3l", "std": "population"},
    {"name": "r3l", "std": "population", "amplify": False},
    {"name": "r3l", "kl_coef": 0.5},
    {"name": "r3l", "clipped": True},
    {"name": "r3l", "clipped": True, "kl_coef": 0.5, "normalize": "token", "credit": False},
    {"name": "grpo", "normalize": "sum", "std": "none"},
    *({"name": "r3l", "sft_pool": "shared", "normalize": n} for n in get_args(Normalize)),
    {"name": "r3l", "sft_pool": "shared", "normalize": "token", "sft_weight": 0.5},
    {"name": "reflect_grpo", "std": "none"},
    *({"name": "hill", "normalize": n} for n in get_args(Normalize) if n != "trajectory"),
]


def model(seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 128}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCAB, initializer_range=0.5, **sizes, **heads)
    ).eval()


def logprobs(lm: LlamaForCausalLM, token_ids: np.ndarray, temperature: float) -> torch.Tensor:
    """log π(token t | tokens before t) at a temperature, float64 [L]; 0 for the first."""
    ids = torch.tensor(token_ids.astype(np.int64))
    all_LV = (lm(ids[None]).logits[0].double() / temperature).log_softmax(-1)
    return torch.nn.functional.pad(all_LV[:-1].gather(1, ids[1:, None])[:, 0], (1, 0))


def values(lm: LlamaForCausalLM, token_ids: np.ndarray, temperature: float) -> np.ndarray:
    with torch.no_grad():
        return logprobs(lm, token_ids, temperature).numpy()


class Groups:
    """Random groups, sampled by `lm` give or take some noise."""

    def __init__(self, lm: LlamaForCausalLM, seed: list[int]) -> None:
        self.lm, self.rng, self.made = lm, np.random.default_rng(seed), 0

    def tokens(self, low: int, high: int) -> list[int]:
        return self.rng.integers(0, VOCAB, self.rng.integers(low, high)).tolist()

    def attempt(self, slot: int, base: Trajectory | None = None, pivot: int = -1) -> Trajectory:
        """An attempt of up to four steps, or one that continues from step `pivot` of `base`."""
        rng = self.rng
        cut = int(base.step_spans[pivot, 0]) if base is not None else 0
        ids = base.token_ids[:cut].tolist() if base is not None else [*self.prompt]
        spans = base.step_spans[:pivot].tolist() if base is not None else []
        for step in range(rng.integers(1, 5)):
            ids += self.tokens(0, 4) if step else []
            response = self.tokens(0 if step and rng.random() < 0.1 else 1, 5)
            spans.append([len(ids), len(ids) + len(response)])
            ids += response
        ids += self.tokens(0, 3)
        token_ids, mask = np.array(ids, np.int32), np.zeros(len(ids), np.bool_)
        for start, end in spans:
            mask[start:end] = True
        noise = rng.normal(0, rng.choice([1e-4, 0.1, 0.5]), len(ids))
        heat = float(rng.choice([1.0, 0.7, 1.3])) if base is None else base.temperature
        sampled = values(self.lm, token_ids, heat) + noise
        return Trajectory(
            slot=slot,
            token_ids=token_ids,
            logprobs=np.where(mask, sampled, 0).astype(np.float32),
            step_spans=np.array(spans, np.int32),
            step_versions=np.zeros(len(spans), np.int32),
            step_newest_versions=np.zeros(len(spans), np.int32),
            step_seconds=np.zeros(len(spans), np.float32),
            reward=float(rng.choice(self.rewards)),
            system="",
            observations=("",) * (len(spans) + 1),
            actions=("",) * len(spans),
            of=-1 if base is None else base.slot,
            pivot=pivot,
            temperature=heat,
            **(self.advised(base, cut) if base is not None else {}),
        )

    def advised(self, base: Trajectory, cut: int) -> dict[str, Any]:
        """The reflection on an attempt, and its guidance at one of two places, or nowhere."""
        advice, keep = np.array(self.tokens(1, 5), np.int32), [0, cut][self.rng.integers(2)]
        shown = Shown(advice, keep, cut) if self.rng.random() < 0.8 else None
        return {"reflection": f"reflect-{base.slot}", "shown": shown}

    def thought(self, slot: int) -> ReflectionRecord:
        ids = np.array(self.tokens(2, 9), np.int32)
        start = int(self.rng.integers(1, len(ids) + 1))
        outcome = str(self.rng.choice(["success", "failure", ""]))
        sampled = values(self.lm, ids, 1.0) + self.rng.normal(0, 0.2, len(ids))
        old = np.where(np.arange(len(ids)) >= start, sampled, 0).astype(np.float32)
        return ReflectionRecord(f"reflect-{slot}", "{}", ids, old, start, slot, outcome=outcome)

    def retry(self, slot: int, of: int, base: Trajectory | None, *, from_start: bool) -> SlotResult:
        chance = self.rng.random()
        if base is None or chance < 0.1:
            cause = "no_base" if base is None else "environment_crash"
            return SlotResult(slot, "failed", cause=cause, of=of)
        if chance < 0.3:
            return SlotResult(slot, "skipped", cause="not_triggered", of=of)
        last = base.num_steps - 1
        some = int(self.rng.integers(0, last + 1))
        pivot = 0 if from_start else int(self.rng.choice([0, some, last]))
        return done(self.attempt(slot, base, pivot))

    def group(self, slots: int, retries: int, *, from_start: bool) -> Group:
        self.prompt, self.rewards = self.tokens(1, 6), REWARDS[self.rng.integers(len(REWARDS))]
        results, bases = list[SlotResult](), dict[int, Trajectory]()
        for slot in range(slots):
            if self.rng.random() < 0.15:
                results.append(SlotResult(slot, "failed", cause="environment_OSError"))
                continue
            bases[slot] = self.attempt(slot)
            results.append(done(bases[slot]))
        for i in range(retries):
            results.append(self.retry(slots + i, i, bases.get(i), from_start=from_start))
        order = self.rng.permutation(len(results))
        self.made += 1
        return Group(
            f"g{self.made}",
            Task("t", "t", 0),
            GroupPlan(len(results)),
            "complete",
            tuple(results[i] for i in order),
            tuple(self.thought(slot) for slot in bases if retries),
        )


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_loss_and_gradient_equal_the_algorithm_written_out_by_hand(
    settings: dict[str, Any],
) -> None:
    algorithm = registry.REGISTRY[settings["name"]](**settings)
    retries = isinstance(algorithm, ReflectAndRetry) and settings.get("reflect", True)
    before, other = model(0), model(0)
    for parameter in other.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    for case in range(4):
        made = Groups(before, [case])
        slots, count = int(made.rng.choice([1, 2, 4])), int(made.rng.integers(1, 5))
        from_start = settings["name"] in ("reflect_grpo", "critique_grpo")
        groups = [
            made.group(slots, slots if retries else 0, from_start=from_start) for _ in range(count)
        ]
        weights = made.rng.uniform(0.2, 2, count).tolist() if case % 2 else [1.0] * count
        drawn = [
            reference.Drawn(group.trajectories, list(group.reflections), weight)
            for group, weight in zip(groups, weights, strict=True)
        ]
        told = reference.whole(
            drawn, settings, partial(values, before), partial(values, other), case
        )
        pack = "tree" if case < 2 else "rows"
        learner = Learner(copy.deepcopy(before), copy.deepcopy(other), algorithm, pack)
        rows = learner.rows(Batch(groups, weights, version=case))
        assert trained(rows) == expected(told, penalized="reference" in algorithm.needs)
        loss, gradient = learner.learned(rows)
        # Sums of float32 in another order: up to 3e-6 apart on an Intel processor with AVX512.
        assert loss == pytest.approx(told.loss, rel=1e-5, abs=1e-6), (case, pack)
        wanted = followed(copy.deepcopy(before), told)
        apart = float((gradient - wanted).norm())
        assert apart <= 1e-5 * float(wanted.norm()) + 1e-6, (case, pack)


def trained(rows: list[Row]) -> list[Any]:
    """Tokens, places and advantage of the rows of attempts, in some order."""
    return sorted(
        (row.token_ids.tolist(), np.flatnonzero(row.mask).tolist(), float(values.max()))
        for row in rows
        if row.loss == POLICY and len(values := row.advantages[row.mask])
    )


def expected(told: reference.Result, *, penalized: bool) -> list[Any]:
    """The same of the reference. A row of advantage 0 has a gradient only by a penalty."""
    return sorted(
        (ids, places, pytest.approx(advantage, rel=1e-6))
        for ids, places, advantage in told.rows
        if places and (advantage or penalized)
    )


class Learner:
    """The learner's parts, as two ranks have them."""

    def __init__(self, lm: Any, other: Any, algorithm: Algorithm, pack: Any) -> None:
        self.module, self.reference = PolicyModule(lm, pack), PolicyModule(other, pack)
        self.algorithm, self.pack = algorithm, pack

    def cut(self, rows: list[Row], rank: int) -> list[list[Row]]:
        return micro_batches(rows, 30, 2, shared=self.pack == "tree")[rank]

    def rows(self, batch: Batch) -> list[Row]:
        """The rows, made with the answers of both ranks together."""

        def score(weights: str, micro: MicroBatch, top: int) -> Scores:
            module = self.reference if weights == "reference" else self.module
            scores: Scores = module(micro.nodes, micro.mask_BT, micro.temperatures_B, top)
            return scores

        queries, cpu = self.algorithm.queries(batch), torch.device("cpu")
        answers = Answers(queries, {"current", *self.algorithm.needs}, VOCAB)
        for rank in range(2):
            answers.fill(score, partial(self.cut, rank=rank), cpu)
        return self.algorithm.rows(batch.with_answers(answers.read()))

    def learned(self, rows: list[Row]) -> tuple[float, torch.Tensor]:
        """Loss and gradient of a step."""
        total, referenced = 0.0, any(row.reference is not None for row in rows)
        for rank in range(2):
            for part in self.cut(rows, rank):
                micro = collate(part, torch.device("cpu"), referenced=referenced)
                loss, sums = step_loss(micro, self.algorithm.loss, self.module, self.pack)
                loss.backward()
                total += sums["loss"]
        return total, flat(self.module.lm)


def followed(lm: LlamaForCausalLM, told: reference.Result) -> torch.Tensor:
    """The gradient that the derivatives by log-probabilities lead to."""
    for token_ids, heat, derivative in told.derivatives:
        if derivative.any():
            (torch.tensor(derivative) * logprobs(lm, token_ids, heat)).sum().backward()
    return flat(lm)


def flat(lm: LlamaForCausalLM) -> torch.Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in lm.parameters()]
    return torch.cat([grad.double().ravel() for grad in grads])
