"""A tiny model folder, groups as actors record them, and rows that share prefixes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import IMITATION, POLICY, Row
from r3l.records import (
    Group,
    GroupPlan,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
    done,
)

TINY = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


def uneven_model(vocabulary: int, positions: int) -> Qwen2ForCausalLM:
    """A random Qwen2 with weights so large that some tokens are much likelier than others."""
    torch.manual_seed(0)
    sizes = {"vocab_size": vocabulary, "max_position_embeddings": positions, "hidden_size": 32}
    sizes |= {"intermediate_size": 64, "num_attention_heads": 4, "tie_word_embeddings": False}
    model = Qwen2ForCausalLM(Qwen2Config(**TINY | sizes, initializer_range=0.5))
    return model.eval().requires_grad_(False)


def tiny_folder(folder: Path, **larger: int) -> Path:
    """Save a random Qwen2 without a tokenizer; `larger`: other sizes than TINY's."""
    torch.manual_seed(0)
    config = Qwen2Config(**TINY | larger)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


STEP, FIRST, RESPONSE = 9, 12, 4


def trajectory(
    slot: int, reward: float, *, steps: int = 4, seed: int = 0, vocab: int = 200, **more
) -> Trajectory:
    """An attempt whose prompt all attempts with the same seed share. A retry (`of`, `pivot`) keeps
    what its attempt did before the pivot."""
    length, of = FIRST + STEP * steps, more.get("of", -1)
    token_ids = _tokens(length, vocab, seed, slot)
    token_ids[:FIRST] = _tokens(FIRST, vocab, seed)
    if of >= 0:
        start = FIRST + STEP * more["pivot"]
        token_ids[FIRST:start] = _tokens(length, vocab, seed, of)[FIRST:start]
    spans = np.array(
        [[FIRST + STEP * k, FIRST + STEP * k + RESPONSE] for k in range(steps)], dtype=np.int32
    )
    mask = np.zeros(length, dtype=bool)
    for start, end in spans:
        mask[start:end] = True
    return Trajectory(
        slot=slot,
        token_ids=token_ids,
        logprobs=np.where(mask, -5.0, 0.0).astype(np.float32),
        step_spans=spans,
        step_versions=np.zeros(steps, dtype=np.int32),
        step_newest_versions=np.zeros(steps, dtype=np.int32),
        step_seconds=np.zeros(steps, dtype=np.float32),
        reward=reward,
        system="s",
        observations=("o",) * (steps + 1),
        actions=("a",) * steps,
        **more,
    )


def thought(of: int, *, seed: int = 0, vocab: int = 200, **more) -> ReflectionRecord:
    """A reflection of 16 tokens on the attempt in slot `of`, as long as an attempt's row."""
    ids = _tokens(FIRST + 3 * STEP + RESPONSE, vocab, seed, 100 + of)
    given = {"text": "{}", "outcome": "failure", "start": len(ids) - 16} | more
    return ReflectionRecord(
        f"reflect-{of}", token_ids=ids, logprobs=np.zeros(len(ids), np.float32), of=of, **given
    )


def group_of(*results: SlotResult, group_id: str = "g0", **more) -> Group:
    """A complete group of these results."""
    plan = GroupPlan(len(results))
    return Group(group_id, Task("t/0", "t", 0), plan, "complete", results, **more)


def explore_group(
    base_rewards: Sequence[float],
    retry_rewards: Sequence[float | None],
    *,
    pivot: int = 1,
    group_id: str = "g0",
    seed: int = 0,
    vocab: int = 200,
) -> Group:
    """Attempts, and behind them a retry's slot for each of the first ones; None: it was skipped.
    Every retry was advised by a reflection."""
    own = {"seed": seed, "vocab": vocab}
    bases, count = list(base_rewards), len(base_rewards)
    results = [done(trajectory(i, reward, **own)) for i, reward in enumerate(bases)]
    thoughts = []
    for i, reward in enumerate(retry_rewards):
        if reward is None:
            results.append(SlotResult(count + i, "skipped", cause="not_triggered", of=i))
            continue
        thoughts.append(thought(i, pivot=pivot, **own))
        name = thoughts[-1].name
        retry = trajectory(count + i, reward, of=i, pivot=pivot, reflection=name, **own)
        results.append(done(retry))
    return group_of(*results, group_id=group_id, reflections=tuple(thoughts))


def _tokens(length: int, vocab: int, seed: int, slot: int = -1) -> np.ndarray:
    rng = np.random.default_rng([seed, slot + 1])
    return rng.integers(3, vocab, length).astype(np.int32)


GROUPS = [
    {"base_rewards": (0.0, 1.0), "retry_rewards": (1.0, None), "pivot": 2},
    {"base_rewards": (0.0, 0.0), "retry_rewards": (1.0, 0.0), "pivot": 1},
    {"base_rewards": (1.0, 0.0), "retry_rewards": (None, 0.0), "pivot": 3},
]


def explored() -> list[Group]:
    """GROUPS as an actor explored them."""
    return [explore_group(**g, seed=i, group_id=f"g{i}") for i, g in enumerate(GROUPS)]


@st.composite
def families(draw, most=7):
    """Token sequences that branch off each other anywhere, repeat and stop within each other."""
    tokens = st.lists(st.integers(0, 5), min_size=1, max_size=12)
    rows = [draw(tokens)]
    for _ in range(draw(st.integers(0, most - 1))):
        origin = draw(st.sampled_from(rows))
        kept = draw(st.integers(0, len(origin)))
        rows.append(origin[:kept] + draw(tokens))
    return [np.array(row, dtype=np.int32) for row in rows]


def rows_of(groups: Sequence[Group], algorithm: Algorithm, **more: Any) -> list[Row]:
    """The rows of a batch, for an algorithm that asks nothing."""
    return algorithm.rows(Batch(groups, **more))


def made_row(
    ids: Any, mask: Any = None, old: Any = 0.0, advantage: Any = 0.0, weight: Any = 1.0, **more: Any
) -> Row:
    """A row with one value for all of its tokens, or with one for each; by default all tokens but
    the first are trained."""
    ids = np.asarray(ids, np.int32)
    mask = np.arange(len(ids)) > 0 if mask is None else np.asarray(mask, np.bool_)
    arrays = (np.broadcast_to(np.float32(a), ids.shape).copy() for a in (old, advantage))
    weights = np.broadcast_to(np.float64(weight), ids.shape).copy()
    return Row(ids, mask, *arrays, weights, **more)


def policy_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.loss == POLICY]


def aux_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.loss == IMITATION]


def weights_of(rows: Sequence[Row]) -> list[float]:
    """The weight of each row's trained tokens, which must be one."""
    found = [set(row.weights[row.mask].tolist()) for row in rows]
    assert all(len(weights) == 1 for weights in found)
    return [weights.pop() for weights in found]


def advantages_of(rows: Sequence[Row]) -> list[float]:
    """The advantage of each row's trained tokens, which must be one."""
    found = [set(row.advantages[row.mask].tolist()) for row in rows]
    assert all(len(values) == 1 for values in found)
    return [values.pop() for values in found]
