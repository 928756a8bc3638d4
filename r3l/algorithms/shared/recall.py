"""Recall: rules that add stored attempts at the same task to a drawn group.

    task's history ─► rule ─► the draw's entry in the ledger ─► rows after the group's own attempts

The buffer service calls `Algorithm.recalls` once, when it draws the group. The draw's entry keeps
the choice, so that a resumed or replayed step recalls the same attempts.
"""

from r3l.algorithms.facts import GroupFacts, History, RandomSource, StoredAttempt
from r3l.records import SUCCESS


def opposing(
    group: GroupFacts,
    history: History,
    random: RandomSource,
    *,
    count: int,
    successes_only: bool = False,
    max_age: int | None = None,
) -> list[StoredAttempt]:
    """If a whole group failed or succeeded, draws up to `count` stored attempts with the opposite
    outcome. With `successes_only`, draws no failures. `max_age`: in versions. Source: R³, arXiv
    2601.19620."""
    outcomes = {reward >= SUCCESS for reward in group.rewards}
    if len(outcomes) != 1 or (successes_only and True in outcomes):
        return []
    wanted = False in outcomes
    candidates = [
        attempt
        for attempt in history
        if attempt.success == wanted
        and (max_age is None or group.version - attempt.version <= max_age)
    ]
    if len(candidates) <= count:
        return candidates
    return [candidates[i] for i in sorted(random().choice(len(candidates), count, replace=False))]
