"""Says which calls of an attempt are trained, why the others are not, and which model names the
attempt used for the policy."""

from collections.abc import Collection, Sequence
from itertools import groupby

from actors.dialects.chat_completions import MODEL
from r3l.views.tape import UNTRAINED, TapedCall


def trained_words(calls: Sequence[TapedCall], train: str) -> str:
    """Returns one phrase such as `trained: call 0 of 2 (actor.agent.train=main); not call 1: it is
    not in the main conversation`. `calls`: the calls in an attempt's record. `train`: the
    setting."""
    made = [call for call in calls if not call.model]
    reasons: dict[str, list[int]] = {}
    for number, call in enumerate(made):
        reasons.setdefault("" if call.trained else call.untrained, []).append(number)
    trained = reasons.pop("", [])
    which = f"{_numbers(trained)} of {len(made)}" if trained else "no call"
    if len(trained) == len(made) > 1:
        which = f"all {len(made)} calls"
    others = (f"; not {_numbers(n)}: {UNTRAINED.get(why, why)}" for why, n in reasons.items())
    return f"trained: {which} (actor.agent.train={train}){''.join(others)}"


def asked_words(names: Collection[str]) -> str:
    """Returns one phrase with the model names that an attempt used for the policy. If no setting
    says what a second name means, adds what to do."""
    listed = f"models asked: {', '.join(sorted(names)) or 'none that is trained'}"
    if len(names) < 2:
        return listed
    undecided = " and ".join(sorted({*names} - {MODEL}))
    return (
        f"{listed}; the policy answers all of them and is trained on them: say what {undecided} "
        "may be with actor.agent.models"
    )


def _numbers(numbers: Sequence[int]) -> str:
    """Writes calls by their numbers, such as `calls 0–3, 7`."""
    parts = []
    for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        own = [number for _, number in run]
        parts.append(f"{own[0]}–{own[-1]}" if len(own) > 1 else f"{own[0]}")
    return f"call{'s' * (len(numbers) > 1)} {', '.join(parts)}"
