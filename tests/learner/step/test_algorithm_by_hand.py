"""Every algorithm, from drawn groups to the gradient of a model, against a slow reference.

Random groups hold what real ones do: slots that failed, were not triggered or expired, single
attempts, equal rewards, pivots at the first and the last step, empty responses, auxiliary samples,
attempts of several temperatures.
"""

import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from learner.step.batch import collate, micro_batches, rows_of
from learner.step.model import PolicyModule
from learner.step.trainer import Trainer
from r3l.algorithms import registry
from r3l.algorithms.credit import Normalize
from r3l.records import AuxSample, Group, GroupPlan, SlotResult, Task, Trajectory
from tests.learner.step import reference

VOCAB = 40
REWARDS = ([0.0], [0.0, 1.0], [0.0, 0.3, 0.5, 1.0], [1.0], [-0.5, 0.0, 2.0], [0.7], [1.0, 1.5])
SETTINGS: list[dict[str, Any]] = [
    {"name": "r3l"},
    {"name": "r3l", "sft_share": None},
    {"name": "r3l", "sft_share": 0.05},
    {"name": "r3l", "sft_share": 0.1, "sft_pool": "shared"},
    {"name": "r3l", "alpha": 1.7, "normalize": "token"},
    {"name": "r3l", "max_rule": "group_max", "sft_weight": 0.3},
    {"name": "r3l", "max_advantage": 1.0, "credit": False},
    {"name": "r3l", "amplify": False},
    {"name": "r3l", "reflect": False},
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
            role="base" if base is None else "distilled",
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
            parent=-1 if base is None else slot,
            pivot=pivot,
            temperature=heat,
        )

    def sample(self, kind: Any) -> AuxSample:
        ids = np.array(self.tokens(2, 9), np.int32)
        mask = self.rng.random(len(ids)) < 0.5
        mask[0] = False
        return AuxSample(kind, ids, mask)

    def retry(self, slot: int, base: Trajectory | None, *, from_start: bool) -> SlotResult:
        chance = self.rng.random()
        if base is None or chance < 0.1:
            cause = "no_base" if base is None else "environment_crash"
            return SlotResult("distilled", slot, "failed", cause=cause)
        if chance < 0.3:
            praise = (self.sample("reflect"),) if chance < 0.2 else ()
            return SlotResult("distilled", slot, "not_triggered", aux=praise)
        last = base.num_steps - 1
        some = int(self.rng.integers(0, last + 1))
        pivot = 0 if from_start else int(self.rng.choice([0, some, last]))
        again = self.attempt(slot, base, pivot)
        verified = (self.sample("reflect"), self.sample("retry")) if chance < 0.6 else ()
        return SlotResult("distilled", slot, "done", trajectory=again, aux=verified)

    def group(self, plan: GroupPlan, *, from_start: bool) -> Group:
        self.prompt, self.rewards = self.tokens(1, 6), REWARDS[self.rng.integers(len(REWARDS))]
        results, bases = [], dict[int, Trajectory]()
        for slot in range(plan.base):
            if self.rng.random() < 0.15:
                results.append(SlotResult("base", slot, "failed", cause="environment_OSError"))
                continue
            bases[slot] = self.attempt(slot)
            results.append(SlotResult("base", slot, "done", trajectory=bases[slot]))
        for slot in range(plan.distilled):
            results.append(self.retry(slot, bases.get(slot), from_start=from_start))
        order = self.rng.permutation(len(results))
        self.made += 1
        return Group(
            f"g{self.made}", Task("t", "t", 0), plan, "complete", tuple(results[i] for i in order)
        )


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_loss_and_gradient_equal_the_algorithm_written_out_by_hand(
    settings: dict[str, Any],
) -> None:
    algorithm = registry.REGISTRY[settings["name"]](**settings).build()
    before, other = model(0), model(0)
    for parameter in other.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    for case in range(4):
        made = Groups(before, [case])
        slots = int(made.rng.choice([1, 2, 4]))
        plan = GroupPlan(slots, slots if algorithm.plan().distilled else 0)
        from_start = algorithm.exploration.from_start
        count = int(made.rng.integers(1, 5))
        groups = [made.group(plan, from_start=from_start) for _ in range(count)]
        weights = made.rng.uniform(0.2, 2, count).tolist() if case % 2 else [1.0] * count
        pack = "tree" if case < 2 else "rows"
        loss, gradient = learned(copy.deepcopy(before), other, algorithm, groups, weights, pack)
        drawn = [
            reference.Drawn(g.trajectories, [s for r in g.results for s in r.aux], weight)
            for g, weight in zip(groups, weights, strict=True)
        ]
        told = reference.whole(drawn, settings, partial(values, before), partial(values, other))
        assert loss == pytest.approx(told.loss, rel=1e-4, abs=1e-6), (case, pack)
        wanted = followed(copy.deepcopy(before), told)
        apart = float((gradient - wanted).norm())
        assert apart <= 1e-4 * float(wanted.norm()) + 1e-6, (case, pack)


def learned(
    lm: LlamaForCausalLM,
    other: LlamaForCausalLM,
    algorithm: Any,
    groups: list[Group],
    weights: list[float],
    pack: Any,
) -> tuple[float, torch.Tensor]:
    """Loss and gradient as the learner has them, in micro-batches of two ranks."""
    rows, module = rows_of(groups, algorithm, weights), PolicyModule(lm, pack)
    trainer: Any = SimpleNamespace(engine=module, module=module, algorithm=algorithm)
    trainer.reference = PolicyModule(copy.deepcopy(other), pack)
    trainer.refers = algorithm.needs_reference
    trainer._reference_logprobs = partial(Trainer._reference_logprobs, trainer)
    total = 0.0
    for mine in micro_batches(rows, 30, 2, shared=pack == "tree"):
        for part in mine:
            loss, parts = Trainer.losses(trainer, collate(part, torch.device("cpu")))
            loss.backward()
            total += parts["loss"]
    return total, flat(lm)


def followed(lm: LlamaForCausalLM, told: reference.Result) -> torch.Tensor:
    """The gradient that the derivatives by log-probabilities lead to."""
    for token_ids, heat, derivative in told.derivatives:
        if derivative.any():
            (torch.tensor(derivative) * logprobs(lm, token_ids, heat)).sum().backward()
    return flat(lm)


def flat(lm: LlamaForCausalLM) -> torch.Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in lm.parameters()]
    return torch.cat([grad.double().ravel() for grad in grads])
