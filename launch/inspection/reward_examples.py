"""Finds attempts in a run's store that show why its reward may be hacked."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from buffer.storage import result_checksums
from buffer.storage.store import Store
from buffer.storage.store_path import has_store
from launch.inspection.reward_rules import Suspicion
from learner.metrics.reward_metrics import EARNS, base_attempts, response_length, short_reply
from r3l.errors import R3LError, RecordError
from r3l.records import Group, Trajectory
from r3l.text import shorten

ROWS, GROUPS, READING_S = 2000, 64, 5.0
"""How many of the newest rows are looked at, how many groups are read, and for how long."""
FINISHED = ("complete", "drawn", "trained")
EXAMPLES, CHARACTERS = 2, 60

Attempt = tuple[Group, Trajectory]


def examples(store: Path, suspicions: Sequence[Suspicion]) -> list[str]:
    """Describes, for each suspicion, attempts of the newest groups that show it. The text is "" if
    the store has no such attempt; if the store cannot be read, it says why. Reads the store
    once."""
    if not suspicions:
        return []
    try:
        attempts = [(group, t) for group in newest(store) for t in base_attempts(group)]
    except R3LError as error:
        return [f"no examples: {error}"] * len(suspicions)
    return ["; ".join(_described(*one, each) for one in _chosen(attempts, each))
            for each in suspicions]  # fmt: skip


def _chosen(attempts: list[Attempt], suspicion: Suspicion) -> list[Attempt]:
    return CHOICES[suspicion.kind](attempts, suspicion.of)[:EXAMPLES]


def newest(store: Path, attempts: int | None = None) -> list[Group]:
    """Reads the newest finished training groups of a store: at most GROUPS, not longer than
    READING_S seconds, or until they have `attempts` attempts. Leaves out damaged groups."""
    if not has_store(store):
        return []
    groups = list[Group]()
    with Store(store, read_only=True) as opened:
        for group in _newest(opened, time.monotonic() + READING_S):
            groups.append(group)
            if attempts and sum(len(each.trajectories) for each in groups) >= attempts:
                break
    return groups


def _newest(store: Store, deadline: float) -> Iterator[Group]:
    with store.read() as txn:
        rows = islice(txn.listed("train", None, None), ROWS)
        finished = (row for row in rows if row.state in FINISHED)
        for row in islice(finished, GROUPS):
            if time.monotonic() > deadline:
                return
            try:
                yield result_checksums.read(txn, row)
            except RecordError:
                continue  # `r3l-buffer verify` names it


def _with_little(attempts: list[Attempt], part: str) -> list[Attempt]:
    """Chooses attempts that earn much with little of a part of the reward."""
    named = [one for one in attempts if part in one[1].extra.reward_parts]
    return sorted(named, key=lambda one: one[1].extra.reward_parts[part] - one[1].reward)


def _best(attempts: list[Attempt], _: str) -> list[Attempt]:
    return sorted(attempts, key=lambda one: -one[1].reward)


def _longest(attempts: list[Attempt], _: str) -> list[Attempt]:
    """Chooses the longest and the shortest attempt of the group whose lengths differ most."""
    groups: dict[str, list[Attempt]] = {}
    for one in sorted(attempts, key=lambda one: -response_length(one[1])):
        groups.setdefault(one[0].group_id, []).append(one)
    pairs = [(some[0], some[-1]) for some in groups.values() if len(some) > 1]
    return list(
        max(pairs, key=lambda two: response_length(two[0][1]) - response_length(two[1][1]),
            default=())
    )  # fmt: skip


def _same_reply(attempts: list[Attempt], _: str) -> list[Attempt]:
    """Chooses attempts of different problems with the reply that earns in most of them."""
    paid: dict[tuple[str, str], Attempt] = {}
    for group, attempt in attempts:
        reply = short_reply(attempt)
        if reply is not None and attempt.reward >= EARNS:
            paid.setdefault((reply, attempt.observations[0]), (group, attempt))
    often = Counter(reply for reply, _ in paid).most_common(1)
    return [one for (reply, _), one in paid.items() if often and reply == often[0][0]]


CHOICES: dict[str, Callable[[list[Attempt], str], list[Attempt]]] = {
    "part": _with_little,
    "success": _best,
    "length": _longest,
    "one_reply": _same_reply,
}
"""How each rule of launch.inspection.reward_rules chooses its examples, best first."""


def _described(group: Group, attempt: Trajectory, suspicion: Suspicion) -> str:
    facts = [f"reward {attempt.reward:.3g}"]
    if suspicion.kind == "part":
        facts.append(f"{suspicion.of} {attempt.extra.reward_parts[suspicion.of]:.3g}")
    if suspicion.kind == "length":
        facts.append(f"{response_length(attempt):.0f} characters")
    said = shorten(" ".join(attempt.actions), CHARACTERS)
    return f"group {group.group_id} slot {attempt.slot} ({', '.join(facts)}): {said!r}"
