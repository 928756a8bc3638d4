"""Measures whether something other than solving the task earns reward: long responses, or one short
reply to every problem.

Counts only base attempts that were played from their beginning.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from r3l.records import SUCCESS, Group, Trajectory

LEAST_ATTEMPTS = 4
"""Fewest attempts of a group whose rewards are compared with their lengths."""
SHORT = 80
"""Most characters of a short reply."""
PROBLEMS, FEW_PROBLEMS = 50, 20
"""How many different problems are remembered, and how many a share needs."""
EARNS = SUCCESS / 2
"""The least reward of a reply that earns something."""
FULL = 0.95 * SUCCESS
"""The least reward of such a reply if all attempts of its group have the same reward."""

Floats = NDArray[np.float64]


def base_attempts(group: Group) -> list[Trajectory]:
    """Returns a group's base attempts that were played from their beginning, without a context."""
    return [t for t in group.trajectories if t.of < 0 and t.origin is None and t.shown is None]


def response_length(attempt: Trajectory) -> float:
    """Returns the mean length of an attempt's responses in characters, not in tokens: rewards read
    text, and under a limit of tokens a policy may still choose longer tokens."""
    played = attempt.actions[attempt.first_played :]
    return sum(map(len, played)) / len(played)


def length_correlation(groups: Iterable[Group]) -> float:
    """Returns Spearman's rank correlation of reward and `response_length` within a group, averaged
    over groups. Uses only groups with at least LEAST_ATTEMPTS attempts in which both vary. Returns
    NaN if there is no such group."""
    found = []
    for group in groups:
        attempts = base_attempts(group)
        rewards = np.array([attempt.reward for attempt in attempts])
        lengths = np.array([response_length(attempt) for attempt in attempts])
        if len(attempts) >= LEAST_ATTEMPTS and np.ptp(rewards) and np.ptp(lengths):
            found.append(float(np.corrcoef(_ranks(rewards), _ranks(lengths))[0, 1]))
    return sum(found) / len(found) if found else float("nan")


def short_reply(attempt: Trajectory) -> str | None:
    """Returns all that the policy said in an attempt, with case, blanks and final punctuation
    normalised. Returns None if that is longer than SHORT characters."""
    said = " ".join(" ".join(attempt.actions).lower().split()).rstrip(".!?, ")
    return said if len(said) <= SHORT else None


class PaidReplies:
    """Remembers which short replies earned something in each of the last PROBLEMS different
    problems. Problems differ if they begin with different observations."""

    def __init__(self) -> None:
        self._paid: OrderedDict[int, frozenset[str]] = OrderedDict()

    def add(self, groups: Sequence[Group]) -> dict[str, float]:
        """Adds the attempts of a step's groups. Returns `group/one_reply`: the share of the
        problems in which the most frequent reply earned something, once there are FEW_PROBLEMS."""
        for group in groups:
            if attempts := base_attempts(group):
                problem = hash((group.task.env, attempts[0].observations[0]))
                self._paid.pop(problem, None)
                self._paid[problem] = frozenset(_paid(attempts))
                if len(self._paid) > PROBLEMS:
                    self._paid.popitem(last=False)
        if len(self._paid) < FEW_PROBLEMS:
            return {}
        counts = Counter(reply for replies in self._paid.values() for reply in replies)
        return {"group/one_reply": max(counts.values(), default=0) / len(self._paid)}


def _paid(attempts: Sequence[Trajectory]) -> Iterator[str]:
    """Yields the short replies that earned something. A reward that every attempt of a group gets
    may be for the form alone, so the reward of a reply must be above the middle between the group's
    lowest and highest reward."""
    rewards = [attempt.reward for attempt in attempts]
    low, high = min(rewards), max(rewards)
    for attempt in attempts:
        reply, reward = short_reply(attempt), attempt.reward
        earns = reward >= FULL if low == high else reward >= EARNS and reward > (low + high) / 2
        if reply is not None and earns:
            yield reply


def _ranks(values: Floats) -> Floats:
    """Returns the rank of each value; equal values have their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
