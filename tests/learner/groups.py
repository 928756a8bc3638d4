"""Recorded-looking groups for the learner's tests."""

from collections.abc import Sequence

import numpy as np

from r3l.records import AuxSample, Group, GroupPlan, SlotResult, Task, Trajectory

STEP, FIRST, RESPONSE = 9, 12, 4


def trajectory(
    role: str, slot: int, reward: float, *, steps: int = 4, seed: int = 0, vocab: int = 200, **more
) -> Trajectory:
    """An attempt whose prompt all attempts with the same seed share."""
    length = FIRST + STEP * steps
    token_ids = _tokens(length, vocab, seed, slot, role)
    token_ids[:FIRST] = _tokens(FIRST, vocab, seed)
    if "pivot" in more:  # a retry keeps what its base did before the pivot
        start = FIRST + STEP * more["pivot"]
        token_ids[FIRST:start] = _tokens(length, vocab, seed, more["parent"], "base")[FIRST:start]
    spans = np.array(
        [[FIRST + STEP * k, FIRST + STEP * k + RESPONSE] for k in range(steps)], dtype=np.int32
    )
    mask = np.zeros(length, dtype=bool)
    for start, end in spans:
        mask[start:end] = True
    return Trajectory(
        role=role,  # type: ignore[arg-type]
        slot=slot,
        token_ids=token_ids,
        response_mask=mask,
        logprobs=np.where(mask, -5.0, 0.0).astype(np.float32),
        step_spans=spans,
        step_versions=np.zeros(steps, dtype=np.int32),
        step_seconds=np.zeros(steps, dtype=np.float32),
        reward=reward,
        system="s",
        observations=("o",) * (steps + 1),
        actions=("a",) * steps,
        **more,
    )


def explore_group(
    base_rewards: Sequence[float],
    retry_rewards: Sequence[float | None],
    *,
    pivot: int = 1,
    group_id: str = "g0",
    seed: int = 0,
    vocab: int = 200,
) -> Group:
    results = [
        SlotResult(
            "base", i, "done", trajectory=trajectory("base", i, reward, seed=seed, vocab=vocab)
        )
        for i, reward in enumerate(base_rewards)
    ]
    for i, reward in enumerate(retry_rewards):
        if reward is None:
            results.append(SlotResult("distilled", i, "not_triggered"))
            continue
        retry = trajectory("distilled", i, reward, seed=seed, vocab=vocab, parent=i, pivot=pivot)
        sample = AuxSample("retry", retry.token_ids, retry.response_mask)
        aux = (sample, sample) if reward >= 1.0 else ()
        results.append(SlotResult("distilled", i, "done", trajectory=retry, aux=aux))
    plan = GroupPlan(len(base_rewards), len(retry_rewards))
    return Group(group_id, Task("t/0", "t", 0), plan, "complete", tuple(results))


def _tokens(length: int, vocab: int, seed: int, slot: int = -1, role: str = "") -> np.ndarray:
    rng = np.random.default_rng([seed, slot + 1, role == "base"])
    return rng.integers(3, vocab, length).astype(np.int32)
