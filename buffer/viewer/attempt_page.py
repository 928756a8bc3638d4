"""Prepares a group for the page: pairs of attempts with their tokens.

AttemptView ─► pairs (attempt, reflection, retry) ─► steps ─► tokens: text, log-probability
ledger ─► attempts that the learner trained on: advantage, first trained step, reliance of a retry
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from buffer.storage import result_checksums
from buffer.storage.store import Store
from buffer.storage.stored_rows import TrainedAttempt
from buffer.tools import group_facts
from buffer.tools.json_values import plain as plain_values
from r3l.records import Group, Int32, Trajectory
from r3l.views import attempt_view
from r3l.views.attempt_view import AttemptView, message_text
from r3l.views.tape import TapedCall, call_tree, conversations

Plain = dict[str, Any]


class Texts:
    """Decodes single tokens with the tokenizer of a model folder, if the folder has one."""

    def __init__(self, model: Path | None) -> None:
        from tokenizers import Tokenizer  # not for every command of r3l-buffer

        file = model / "tokenizer.json" if model is not None else None
        self._tokenizer = Tokenizer.from_file(str(file)) if file and file.is_file() else None

    def of(self, token_ids: Int32) -> list[str] | None:
        """Returns each token's text, or None without a tokenizer. If several tokens form one
        character, only the last token has text."""
        if self._tokenizer is None:
            return None
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self._tokenizer, token) or "" for token in token_ids.tolist()]


def plain_group(store: Store, group_id: str, texts: Texts) -> Plain:
    """Returns a group as JSON values. `recalled`: attempts from other groups, added by the last
    step. Raises NotFound, RecordError."""
    with store.read() as txn:
        row = txn.existing_row(group_id)
        group, known = result_checksums.read(txn, row), group_facts.facts(row)
        step = txn.step(known["step"])
        draw = None if step is None else txn.draw(step.draw_id)
    trained = [t for t in step.attempts if t.into == group_id] if step is not None else []
    own = {t.slot: t for t in trained if t.group_id == group_id}
    weights = {} if draw is None else dict(zip(draw.groups, draw.weights, strict=False))
    return known | {
        "times": group.times,
        "seed": str(group.task.seed),  # JavaScript's numbers have 53 bits
        "options": json.dumps(plain_values(group.task.options), ensure_ascii=False),
        "fingerprints": group.fingerprints,
        "weight": weights.get(group_id, 1.0),
        "kind": group.plan.kind,
        "handed": [plain_values(key) for key in group.plan.handed],
        "unresolved": group.unresolved,
        "pairs": pairs(group, texts, own),
        "recalled": [plain_values(t) for t in trained if t.group_id != group_id],
    }


def pairs(group: Group, texts: Texts, trained: Mapping[int, TrainedAttempt]) -> list[Plain]:
    """Converts a group's pairs to JSON values. `trained`: how the learner used the attempt of each
    slot."""

    known: dict[int, Plain] = {}

    def plain(v: AttemptView | None) -> Plain | None:
        if v is None:
            return None
        if v.slot not in known:
            known[v.slot] = _slot(v, group, texts, trained.get(v.slot))
        return known[v.slot]

    return [
        {
            "slot": pair.slot,
            "base": plain(pair.base),
            "reflection": None if pair.reflection is None else plain_values(pair.reflection),
            "retry": plain(pair.retry),
            "pivot": pair.retry.pivot if pair.retry else -1,
            "gain": pair.gain,
        }
        for pair in attempt_view.pairs(group)
    ]


def _slot(view: AttemptView, group: Group, texts: Texts, used: TrainedAttempt | None) -> Plain:
    """Converts a slot, and adds the tokens of each step. Without an attempt, `steps` is None."""
    shown: Plain = plain_values(view) | {
        "steps": None,
        "advantage": None if used is None else used.advantage,
        "by_token": used is not None and used.by_token,
        "token_weight": None if used is None else used.weight,
        "reliance": None if used is None else used.reliance,
    }
    shown["tree"] = call_tree(view.calls)
    shown["conversations"] = []
    if view.steps:
        [attempt] = [t for t in group.trajectories if t.slot == view.slot]
        shown["steps"] = [
            plain_values(step)
            | {
                "tokens": texts.of(attempt.token_ids[start:end]),
                "logprobs": [round(value, 4) for value in attempt.logprobs[start:end].tolist()],
                "trained": used is not None and k >= used.first_step,
            }
            for k, (step, (start, end)) in enumerate(
                zip(view.steps, attempt.step_spans.tolist(), strict=True)
            )
        ]
        shown["conversations"] = [
            _conversation(chain, view.calls, attempt, texts, trained=used is not None)
            for chain in conversations(view.calls)
        ]
    return shown


def _conversation(
    chain: Sequence[int],
    calls: Sequence[TapedCall],
    attempt: Trajectory,
    texts: Texts,
    *,
    trained: bool,
) -> Plain:
    """Converts a conversation, and each of its calls to a step. Leaves out the steps of the main
    conversation, because the attempt already shows them."""
    numbers = [calls[k].conversation for k in chain if calls[k].conversation >= 0]
    own = attempt.conversations()[numbers[-1]] if numbers else None
    main = numbers[-1:] == [0]
    steps = [] if main else [_call(calls[k], own, texts, trained=trained) for k in chain]
    return {"calls": chain, "main": main, "steps": steps}


def _call(call: TapedCall, own: Trajectory | None, texts: Texts, *, trained: bool) -> Plain:
    """Converts a call to a step. `own`: the stored conversation of the call, or None."""
    said = [f"[{message['role']}] {message_text(message)}" for message in call.messages]
    shown: Plain = {
        "observation": "\n".join(said),
        "action": message_text(call.reply),
        "seconds": call.seconds,
        "length": call.tokens,
        "versions": call.dialect,
        "tokens": None,
        "logprobs": [],
        "trained": trained and call.trained and call.conversation >= 0,
    }
    if own is None or call.conversation < 0:
        return shown
    span = slice(call.read, call.read + call.tokens)
    return shown | {
        "tokens": texts.of(own.token_ids[span]),
        "logprobs": own.logprobs[span].round(4).tolist(),
    }
