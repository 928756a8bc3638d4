"""A batch: the groups of one optimizer step, as an algorithm gets them.

A draw of a buffer client is a batch (buffer.client). A loop in one process makes its own:
Batch([group, …]).
"""

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
from msgspec.structs import replace as changed

from r3l.errors import UserError
from r3l.records import Bool, Group, Int32, Recalled, Trajectory, done
from r3l.rollout.attempt import advised
from r3l.rollout.chat import ChatFormat


class Source(NamedTuple):
    """An attempt in a batch. `into`: the group in which it is trained. `group_id`: the group that
    stores it."""

    into: str
    group_id: str
    attempt: Trajectory


@dataclass(frozen=True)
class Batch:
    """The groups of one optimizer step.

    `weights`: importance weight w_g of each group, by default 1. `recalled`: stored attempts that
    join the groups. `replayed`: ids of groups that an earlier step trained on. `version`: the
    version of the learner's weights, None if unknown. `answers`: what the queries found, by key
    (r3l.algorithms.queries). `chat`: makes the chat format of the trained model. `memo`: what an
    algorithm keeps between `queries` and `rows`, under names of its own; it must depend only on the
    groups.
    """

    groups: Sequence[Group]
    weights: Sequence[float] = ()
    recalled: Sequence[Recalled] = ()
    replayed: Container[str] = ()
    version: int | None = None
    answers: Mapping[Hashable, Any] = field(default_factory=dict)
    chat: Callable[[], ChatFormat] | None = None
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def with_answers(self, answers: Mapping[Hashable, Any]) -> Self:
        """Returns the batch with the answers of its queries."""
        return replace(self, answers=answers)

    def advised(self, attempt: Trajectory, guidance: str, step: int = 0) -> tuple[Int32, Bool]:
        """Returns an attempt's main conversation with guidance inserted before `step`: token ids,
        int32 [M], and the mask of its responses, bool [M]. From `step` on, the tokens are the
        attempt's own. Raises UserError if the batch has no chat format."""
        if self.chat is None:
            raise UserError("this batch has no chat format; make it with Batch(…, chat=…)")
        return attempt.as_shown(advised(self.chat(), attempt, step, guidance))

    def as_read(self, which: Callable[[Group], bool] = lambda group: True) -> Self:
        """Returns the batch with the attempts of some groups as the policy read them, so that the
        rows include what the policy was shown. Recalled attempts stay as they are stored."""
        if not any(map(which, self.groups)):
            return self
        groups = [_as_read(group) if which(group) else group for group in self.groups]
        return replace(self, groups=groups, memo={})

    def weight(self, number: int) -> float:
        """Returns w_g of group `number`."""
        return self.weights[number] if self.weights else 1.0

    def sources(self, group: Group) -> list[Source]:
        """Returns the attempts that are trained in a group: its own, then the recalled ones. None
        if the group has no attempt of its own."""
        name = group.group_id
        own = [Source(name, name, attempt) for attempt in group.trajectories]
        joined = [each for each in self.recalled if each.into == name]
        return own and own + [Source(name, each.group_id, each.trajectory) for each in joined]

    def attempts(self, group: Group) -> list[Trajectory]:
        """Returns the trajectories of the G attempts that are trained in a group."""
        return [source.attempt for source in self.sources(group)]

    def recalls(self, group: Group) -> int:
        """Returns how many of a group's attempts were recalled. These come last."""
        return len(self.sources(group)) - len(group.trajectories)

    @property
    def baseline(self) -> float:
        """The median of the new groups' mean rewards, or of all groups' if no group is new."""
        whole = [group for group in self.groups if group.trajectories]
        means = [group.rewards.mean() for group in whole if group.group_id not in self.replayed]
        return float(np.median(means or [group.rewards.mean() for group in whole] or [0.0]))


def _as_read(group: Group) -> Group:
    results = [done(r.trajectory.as_read()) if r.trajectory else r for r in group.results]
    return changed(group, results=tuple(results))
