"""Task samplers choose the training task of the next group. The same seed, epoch, position and
stored groups give the same task."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

import numpy as np
import numpy.typing as npt

from buffer.storage.stored_rows import GroupRow
from r3l.records import SUCCESS
from r3l.run.settings.buffer_sampling import TaskSamplerConfig
from r3l.settings import user_class

Order = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TaskView:
    """The input of a task sampler. `position`: groups made so far in the epoch. `history(i)`: the
    finished groups of task i, newest first."""

    seed: int
    epoch: int
    position: int
    size: int  # number of tasks, and of groups in an epoch
    history: Callable[[int], Iterable[GroupRow]]


class TaskSampler(ABC):
    """Chooses the next task."""

    def __init__(self, config: TaskSamplerConfig) -> None:
        self.config = config

    @abstractmethod
    def next(self, view: TaskView) -> int:
        """Returns the index of the next task, from 0 to `view.size` − 1."""


class Shuffled(TaskSampler):
    """Chooses every task once per epoch, in a new order each time."""

    def next(self, view: TaskView) -> int:
        return int(_shuffled(view.seed, view.epoch, view.size)[view.position])


class Curriculum(TaskSampler):
    """Picks random tasks and samples a success rate from each task's posterior. Chooses the task
    whose rate is nearest to `target` (arXiv 2507.04632).

    The posterior is Beta(1 + Σ γ^k s_k, 1 + Σ γ^k f_k). γ is `decay`. s_k and f_k count the
    successes and failures of base attempts in the task's k-th newest group (k = 0 … HISTORY − 1).
    Leaves out groups that were handed stored attempts: they may have started inside them.
    """

    HISTORY = 8

    def next(self, view: TaskView) -> int:
        rng = np.random.default_rng([view.seed, view.epoch, view.position])
        count = min(self.config.candidates, view.size)
        places = np.sort(rng.choice(view.size, count, replace=False))
        guesses = [rng.beta(*self._posterior(view, int(place))) for place in places]
        return int(places[np.argmin(np.abs(np.array(guesses) - self.config.target))])

    def _posterior(self, view: TaskView, place: int) -> tuple[float, float]:
        successes = failures = 1.0
        played = (row for row in view.history(place) if not row.plan.handed)
        for age, row in enumerate(islice(played, self.HISTORY)):
            rewards = row.base_rewards
            won = sum(reward >= SUCCESS for reward in rewards)
            successes += self.config.decay**age * won
            failures += self.config.decay**age * (len(rewards) - won)
        return successes, failures


TASK_SAMPLERS: dict[str, type[TaskSampler]] = {"shuffled": Shuffled, "curriculum": Curriculum}


def make(config: TaskSamplerConfig) -> TaskSampler:
    """Makes the configured task sampler, built in or the user's own (`path/to/file.py:Class`).
    Raises UserError if it is unknown."""
    return user_class.find("buffer.task_sampler", config.name, TASK_SAMPLERS, TaskSampler)(config)


@lru_cache(maxsize=4)
def _shuffled(seed: int, epoch: int, size: int) -> Order:
    """Returns the order in which an epoch leases its tasks."""
    return np.random.default_rng([seed, epoch]).permutation(size)
