"""docs/algorithm.md written out slowly: one trajectory and one token at a time.

    groups ─► credit, advantages ─► loss, and its derivative by every token's log-probability

Nothing here is taken from r3l or learner. `LogProbs` gives log π(token t | tokens before t) of a
sequence at a temperature, float64 [L], by the policy or the reference.
"""

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from r3l.records import ReflectionRecord, Trajectory

Float64 = npt.NDArray[np.float64]
LogProbs = Callable[[Any, float], Float64]
CLIP = {"dapo": (0.2, 0.28), "arpo": (0.2, 0.3), "gspo": (3e-4, 4e-4)}
KL = {"grpo": 0.01, "gspo": 0.01, "reflect_grpo": 0.01, "r3": 0.01, "rlvmr": 0.01}
MEANS = {"dapo": "token", "rloo": "sum"}


@dataclass
class Drawn:
    """A group as the paper sees it: its attempts, the reflections on them, its weight."""

    attempts: list[Trajectory]
    thoughts: list[ReflectionRecord]
    weight: float = 1.0


@dataclass
class Sample:
    """Tokens to learn by heart, those of the mask."""

    token_ids: Any
    mask: Any


@dataclass
class Result:
    """The loss, and its derivatives: (tokens, temperature, float64 [L] per log-probability) of
    each row. `rows`: (tokens up to the last trained one, places of the trained ones, advantage) of
    each attempt that is trained."""

    loss: float = 0.0
    derivatives: list[tuple[Any, float, Float64]] = field(default_factory=list)
    rows: list[tuple[list[int], list[int], float]] = field(default_factory=list)


def credit(one: Trajectory, group: Sequence[Trajectory], masked: bool) -> list[int]:
    """The places of the tokens of an attempt that are trained."""
    pivots = [other.pivot for other in group if other.of == one.slot and one.of < 0]
    pivot = one.pivot if one.of >= 0 else min(pivots, default=0)
    first = pivot if masked else 0
    return [t for start, end in one.step_spans.tolist()[first:] for t in range(start, end)]


def learned(group: Drawn, settings: dict[str, Any]) -> list[list[Sample]]:
    """The auxiliary samples: verified corrections with the reflections that led to them, and
    reflections that recognise a success."""
    found, by_slot = list[list[Sample]](), {one.slot: one for one in group.attempts}
    for again in group.attempts:
        if again.of < 0 or (again.reward < 1 and settings.get("verified_requires_success", True)):
            continue
        first = by_slot[again.of]
        shorter = first.reward >= 1 and len(again.step_spans) < len(first.step_spans)
        if again.reward > first.reward or shorter:
            thought = next(t for t in group.thoughts if t.name == again.reflection)
            found.append([recited(thought), advised(again)])
    for thought in group.thoughts:
        if thought.outcome == "success" and by_slot[thought.of].reward >= 1:
            found.append([recited(thought)])
    return found


def recited(thought: ReflectionRecord) -> Sample:
    """The answer to the question."""
    return Sample(thought.token_ids, np.arange(len(thought.token_ids)) >= thought.start)


def advised(one: Trajectory) -> Sample:
    """What a retry read, with its guidance, and what it sampled from its pivot on."""
    ids, mask = [], []
    trained = {t for a, b in one.step_spans.tolist()[one.pivot :] for t in range(a, b)}
    for place, token in enumerate(one.token_ids.tolist()):
        if one.shown is not None and place == one.shown.resume:
            ids, mask = ids[: one.shown.keep], mask[: one.shown.keep]
            ids, mask = ids + one.shown.tokens.tolist(), mask + [False] * len(one.shown.tokens)
        ids, mask = [*ids, token], [*mask, place in trained]
    return Sample(np.array(ids, np.int32), np.array(mask))


def answers(one: Trajectory) -> Sample:
    """What the environment answered, token by token."""
    mask = np.zeros(len(one.token_ids), np.bool_)
    ends = [*one.step_spans[1:, 0].tolist(), len(one.token_ids)]
    for (_, start), end in zip(one.step_spans.tolist(), ends, strict=True):
        mask[start:end] = True
    return Sample(one.token_ids, mask)


def amplified(rewards: list[float], settings: dict[str, Any]) -> list[float]:
    alpha, rule = settings.get("alpha", 3.0), settings.get("max_rule", "success")
    top = settings.get("max_advantage", alpha)
    mean, equal = sum(rewards) / len(rewards), min(rewards) == max(rewards)
    out = []
    for reward in rewards:
        s = 0.0 if equal else reward - mean
        if settings.get("std") == "population" and not equal:
            s /= math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards)) + 1e-6
        if not settings.get("amplify", True):
            out.append(s)
        elif rule == "group_max" and equal:
            out.append(0.0)
        elif reward >= 1.0 if rule == "success" else reward == max(rewards):
            out.append(top)
        else:
            out.append(alpha * s if s >= 0 else s)
    return out


def first_turn(members: list[Trajectory]) -> list[float]:
    """RLTF: each reward less the mean of the plain attempts, of the others if it is one itself.
    Exactly 0 if it is their reward."""
    values = []
    for one in members:
        others = [o.reward for o in members if o.of < 0 and o.slot != one.slot]
        equal = all(reward == one.reward for reward in others)
        values.append(0.0 if equal else one.reward - sum(others) / len(others))
    return values


def transfer(one: Trajectory, places: list[int], policy: LogProbs, step: int) -> float:
    """HiLL's weight of a retry: exp(min(Δ, 0)/0.3), 1 without a token. With guidance it was
    sampled by the weights of `step`, or it is read again."""
    if not places:
        return 1.0
    guided = [float(one.logprobs[t]) for t in places]
    if any(version != step for version in one.step_versions[one.pivot :].tolist()):
        sample = advised(one)
        guided = policy(sample.token_ids, one.temperature)[sample.mask].tolist()
    alone = policy(one.token_ids, one.temperature)
    apart = [float(alone[t]) - g for t, g in zip(places, guided, strict=True)]
    return math.exp(min(sum(apart) / len(apart), 0.0) / 0.3)


def advantages(name: str, rewards: list[float], settings: dict[str, Any]) -> list[float]:
    if name == "r3l":
        return amplified(rewards, settings)
    if name == "raft":
        return [1.0] * len(rewards)
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    centered = [reward - sum(rewards) / len(rewards) for reward in rewards]
    if name == "rloo":
        count = len(rewards)
        return [r - (sum(rewards) - r) / (count - 1) for r in rewards]
    ways = {"population": len(centered), "sample": len(centered) - 1}
    if name == "opmd" or settings.get("std") == "none":
        return centered
    own = "sample" if name == "rlvmr" else "population"  # its steps have no tags here
    std = math.sqrt(sum(s * s for s in centered) / ways[settings.get("std", own)])
    share = 0.5 if name == "sdpo" else 1.0  # the other half is of advice, which is not here
    return [share * s / (std + 1e-6) for s in centered]


def earned(one: Trajectory, settings: dict[str, Any]) -> float:
    """The reward less DAPO's penalty for a long response."""
    limit, buffer = settings.get("overlong_limit", 20480), settings.get("overlong_buffer", 4096)
    excess = int(one.response_mask.sum()) - (limit - buffer)
    if settings["name"] != "dapo" or not buffer or excess <= 0:
        return one.reward
    return one.reward - min(excess / buffer, 1.0)


def kept(settings: dict[str, Any], group: list[Trajectory]) -> list[Trajectory]:
    name, rewards = settings["name"], [one.reward for one in group]
    if name == "raft":
        return [one for one in group if one.reward >= 1.0]
    if name == "rltf":
        return group if any(one.of < 0 for one in group) else []
    if name == "dapo" and settings.get("filter", True):
        return group if min(rewards) < max(rewards) else []
    if name != "critique_grpo":
        return group
    bases = {one.slot: one for one in group if one.of < 0}
    better = [one for one in group if one.of >= 0 and bases[one.of].reward < min(1.0, one.reward)]
    if better:
        best = max(better, key=lambda one: (one.reward, -one.slot))
        bases[best.of] = best
    return list(bases.values())


def divergence(name: str, apart: float) -> tuple[float, float]:
    """(the KL estimate of a token, its derivative), `apart` = log π_ref − log π."""
    if name == "r3l":
        return apart * apart / 2, -apart
    return math.exp(apart) - apart - 1, 1 - math.exp(apart)


def term(
    settings: dict[str, Any], one: Trajectory, advantage: float, logprob: float, old: float
) -> tuple[float, float]:
    """(what a token adds to the sum, its derivative by the token's log-probability)."""
    name = settings["name"]
    plain = name in ("r3l", "raft", "opmd", "rltf") and not settings.get("clipped")
    if plain or (name == "rloo" and not settings.get("clip")):
        share = advantage / 2 if name == "opmd" else advantage
        return -share * logprob, -share
    if name == "sdpo":
        weight = 1.0 if one.of >= 0 else min(math.exp(logprob - old), 2.0)
        return -weight * advantage * logprob, -weight * advantage
    if name == "critique_grpo" and one.of >= 0:
        p = math.exp(logprob)
        return -advantage * p / (p + 0.1), -advantage * p * 0.1 / (p + 0.1) ** 2
    if one.of >= 0:  # judged without its guidance, by the learner itself
        return -advantage, -advantage
    ratio = math.exp(logprob - old)
    if not settings.get("clip", True):
        return -ratio * advantage, -ratio * advantage
    return clipped(advantage, ratio, *CLIP.get(name, (0.2, 0.2)))


def clipped(advantage: float, ratio: float, low: float, high: float) -> tuple[float, float]:
    """PPO's term of a token, and its derivative by the token's log-probability."""
    free, inside = ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage
    return (-free, -free) if free <= inside else (-inside, 0.0)


def fitting(
    corrections: list[tuple[list[Sample], Drawn]], room: float, step: int
) -> list[tuple[list[Sample], Drawn]]:
    """As many corrections as fit into `room` tokens even if they are the longest, the first by the
    hash of a step and their texts. A text ends with its last trained token."""
    texts, sizes = [], []
    for samples, _ in corrections:
        ends = [max(np.flatnonzero(one.mask), default=-1) + 1 for one in samples]
        cut = [one.token_ids[:end].tobytes() for one, end in zip(samples, ends, strict=True)]
        texts.append(b"".join(cut))
        sizes.append(sum(ends))
    most = 0
    while most < len(sizes) and sum(sorted(sizes)[len(sizes) - most - 1 :]) <= room:
        most += 1
    salt = struct.pack("<q", step)
    hashes = [hashlib.blake2b(text, digest_size=16, key=salt).digest() for text in texts]
    first = sorted(range(len(texts)), key=lambda i: hashes[i])[:most]
    return [corrections[i] for i in first]


def hinted(
    rows: Sequence[Any],
    policy: LogProbs,
    step: int,
    shares: Callable[[Drawn, int], float],
    result: Result,
) -> None:
    """Adds HiLL's loss on reflections that led to a retry: PPO's, beside the attempts. `shares`:
    the weight of a token of one, of its group and its length."""
    paid = [
        (thought, value * transfer(one, places, policy, step), group)
        for one, value, places, group in rows
        for thought in group.thoughts
        if one.of >= 0 and thought.name == one.reflection
    ]
    for thought, value, group in paid:
        sample = recited(thought)
        share, derivative = shares(group, int(sample.mask.sum())), np.zeros(len(sample.mask))
        logprobs = policy(sample.token_ids, thought.temperature)
        for t in np.flatnonzero(sample.mask):
            ratio = math.exp(logprobs[t] - float(thought.logprobs[t]))
            term_t, slope = clipped(value, ratio, 0.2, 0.2)
            result.loss += share * term_t
            derivative[t] = share * slope
        result.derivatives.append((sample.token_ids, thought.temperature, derivative))


def whole(
    groups: list[Drawn],
    settings: dict[str, Any],
    policy: LogProbs,
    reference: LogProbs,
    step: int = 0,
) -> Result:
    """The loss of one optimizer step over `groups` under the settings of `algorithm`. `step`: the
    version of the weights."""
    name = settings["name"]
    rows = []
    for group in groups:
        members = kept(settings, group.attempts)
        rewards = [earned(one, settings) for one in members]
        values = advantages(name, rewards, settings) if members else []
        values = first_turn(members) if name == "rltf" else values
        masked = name in ("r3l", "rltf", "hill") and settings.get("credit", True)
        for one, value in zip(members, values, strict=True):
            rows.append((one, value, credit(one, group.attempts, masked), group))
    means = settings.get("normalize", MEANS.get(name, "trajectory"))
    corrections = [(samples, group) for group in groups for samples in learned(group, settings)]
    if name == "early_experience":
        corrections = [([answers(one)], group) for group in groups for one in group.attempts]
    elif name != "r3l" or not settings.get("reflect", True):
        corrections = []
    if name == "r3l" and (share := settings.get("sft_share")) is not None:
        room = share * sum(max(places, default=-1) + 1 for *_, places, _ in rows)
        corrections = fitting(corrections, room, step)
    samples = [(sample, group) for together, group in corrections for sample in together]
    shared = samples if settings.get("sft_pool") == "shared" else []
    count = len(rows) + len(shared)
    if means == "token":
        count = sum(len(places) for _, _, places, _ in rows)
        count += sum(int(sample.mask.sum()) for sample, _ in shared)
    members_of = Counter(id(group) for *_, group in [*rows, *shared])

    def number(group: Drawn) -> int:
        """What the weight of one of its rows is divided by."""
        return len(members_of) * members_of[id(group)] if means == "group" else count

    def shared_by(group: Drawn, length: int) -> float:
        """The weight of a token of a row of one of its attempts."""
        divided = max(length, 1) if means in ("trajectory", "attempt", "group") else 1
        return group.weight / number(group) / divided

    result = Result()
    for one, advantage, places, group in rows:
        heat, derivative = one.temperature, np.zeros(len(one.token_ids))
        logprobs = policy(one.token_ids, heat)
        length = len(places) if means == "trajectory" else int(one.response_mask.sum())
        share = shared_by(group, length)
        old = one.logprobs.astype(np.float64)
        if name == "gspo" and places:
            sequence = float(np.mean([logprobs[t] - old[t] for t in places]))
            value, slope = term(settings, one, advantage, sequence, 0.0)
            result.loss += share * len(places) * value
            derivative[places] += share * slope
        elif name != "gspo":
            for t in places:
                value, slope = term(settings, one, advantage, logprobs[t], old[t])
                result.loss += share * value
                derivative[t] += share * slope
        if kl := settings.get("kl_coef", KL.get(name, 0.0)):
            apart = reference(one.token_ids, heat) - logprobs
            for t in places:
                value, slope = divergence(name, float(apart[t]))
                result.loss += share * kl * value
                derivative[t] += share * kl * slope
        result.derivatives.append((one.token_ids, heat, derivative))
        end = max(places, default=-1) + 1
        result.rows.append((one.token_ids[:end].tolist(), places, advantage))
    if name == "hill":
        hinted(rows, policy, step, shared_by, result)
    pool = sum(int(sample.mask.sum()) for sample, _ in samples)
    for sample, group in samples:
        own = shared_by(group, int(sample.mask.sum())) if shared else group.weight / max(pool, 1)
        share = settings.get("sft_weight", 1.0) * own
        result.loss -= share * float(policy(sample.token_ids, 1.0)[sample.mask].sum())
        result.derivatives.append((sample.token_ids, 1.0, -share * sample.mask))
    return result
