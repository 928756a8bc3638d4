"""A group for people: base, reflection and retry of each slot, with what every token did.

records ─► pairs (base, retry) ─► steps ─► tokens: text, log-probability, trained or not
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from buffer.storage.store import Store
from buffer.tools import jsonl, offline
from r3l.algorithms.algorithm import Algorithm
from r3l.records import Bool, Group, Int32, Role, SlotResult, Trajectory

Plain = dict[str, Any]
Shown = dict[tuple[Role, int], Plain]


class Texts:
    """The text of single tokens, by the tokenizer of a model folder; without one there are none."""

    def __init__(self, model: Path | None) -> None:
        from tokenizers import Tokenizer  # not for every command of r3l-buffer

        file = model / "tokenizer.json" if model is not None else None
        self._tokenizer = Tokenizer.from_file(str(file)) if file and file.is_file() else None

    def of(self, token_ids: Int32) -> list[str] | None:
        """One text per token, together the whole text. A character of several tokens is the last
        one's; the others are empty."""
        if self._tokenizer is None:
            return None
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self._tokenizer, token) or "" for token in token_ids.tolist()]


def plain_group(store: Store, group_id: str, algorithm: Algorithm | None, texts: Texts) -> Plain:
    """A group as values JSON can hold: its facts and its `pairs`. Raises NotFound, RecordError.

    `algorithm`: says which tokens are trained and with which advantage; None: not known, and all
    sampled tokens are marked.
    """
    group = offline.group(store, group_id)
    row = offline.row(store, group_id)
    weight = offline.weights(store, row["step"]).get(group_id, 1.0) if row["step"] >= 0 else 1.0
    return row | {
        "times": group.times,
        "seed": str(group.task.seed),  # JavaScript's numbers have 53 bits
        "options": json.dumps(jsonl.plain(group.task.options), ensure_ascii=False),
        "fingerprints": group.fingerprints,
        "weight": weight,
        "unresolved": group.unresolved,
        "pairs": pairs(group, algorithm, texts),
    }


def pairs(group: Group, algorithm: Algorithm | None, texts: Texts) -> list[Plain]:
    """Base slots in order, each with its retry; a base with several retries comes once for each.

    {slot, base, retry, pivot, gain}: `base` and `retry` are slots as `_slot` shows them, None if
    there is none yet; `pivot` is the retry's; `gain` its reward minus the base's, None if one has
    no reward.
    """
    shown: Shown = {(r.role, r.slot): _slot(r, texts) for r in group.results}
    _add_credit(shown, group, algorithm)
    retries: dict[int, list[Plain]] = {}
    for result in group.results:
        if result.role == "distilled":
            base = result.slot if result.trajectory is None else result.trajectory.parent
            retries.setdefault(base, []).append(shown[result.role, result.slot])
    found = []
    for slot in sorted(set(range(group.plan.base)) | set(retries)):
        own: Sequence[Plain | None] = retries.get(slot) or [None]
        found += [_pair(slot, shown.get(("base", slot)), retry) for retry in own]
    return found


def _pair(slot: int, base: Plain | None, retry: Plain | None) -> Plain:
    gain = None
    if base and retry and None not in (base["reward"], retry["reward"]):
        gain = retry["reward"] - base["reward"]
    return {
        "slot": slot,
        "base": base,
        "retry": retry,
        "pivot": retry["pivot"] if retry else -1,
        "gain": gain,
    }


def _slot(result: SlotResult, texts: Texts) -> Plain:
    """One slot: its status, and of a trajectory everything that is shown."""
    shown: Plain = {
        "role": result.role,
        "slot": result.slot,
        "status": result.status,
        "cause": result.cause,
        "reflection": jsonl.plain(result.reflection),
        "aux": [sample.kind for sample in result.aux],
        "reward": None,
        "pivot": -1,
    }
    if result.trajectory is not None:
        shown |= _attempt(result.trajectory, texts)
    return shown


def _attempt(attempt: Trajectory, texts: Texts) -> Plain:
    steps = []
    for k, (start, end) in enumerate(attempt.step_spans.tolist()):
        steps.append(
            {
                "observation": attempt.observations[k],
                "action": attempt.actions[k],
                "version": int(attempt.step_versions[k]),
                "newest": int(attempt.step_newest_versions[k]),
                "seconds": _number(attempt.step_seconds[k]),
                "tokens": texts.of(attempt.token_ids[start:end]),
                "logprobs": [_number(value) for value in attempt.logprobs[start:end]],
            }
        )
    return {
        "reward": attempt.reward,
        "pivot": attempt.pivot,
        "finish": attempt.finish,
        "feedback": attempt.feedback,
        "faults": list(attempt.faults),
        "cut": attempt.cut_responses,
        "parts": attempt.extra.reward_parts,
        "temperature": attempt.temperature,
        "system": attempt.system,
        "length": len(attempt.token_ids),
        "steps": steps,
        "last": attempt.observations[-1],
    }


def _add_credit(shown: Shown, group: Group, algorithm: Algorithm | None) -> None:
    """Add `advantage`, `kept` and, to every step, `trained`: 0 or 1 for each of its tokens."""
    attempts = group.trajectories
    masks: Sequence[Bool] = [one.response_mask for one in attempts]
    advantages: Sequence[float | None] = [None] * len(attempts)
    keep: Sequence[bool] = [True] * len(attempts)
    if algorithm is not None and attempts:
        masks = algorithm.masks(attempts)
        found, kept = algorithm.advantages(group.rewards, attempts)
        advantages, keep = found.tolist(), kept.tolist()
    for one, mask, advantage, trains in zip(attempts, masks, advantages, keep, strict=True):
        into = shown[one.role, one.slot]
        into |= {"advantage": advantage, "kept": trains}
        for step, (start, end) in zip(into["steps"], one.step_spans.tolist(), strict=True):
            step["trained"] = [int(trains and bit) for bit in mask[start:end]]


def _number(value: Any) -> float:
    """Four digits behind the point are shown."""
    return round(float(value), 4)
