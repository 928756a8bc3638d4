"""The interface of environments, and the sources of their tasks.

Only `TextEnv` is required; its docstring lists the optional attributes.
"""

import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout.env_interface import Environment

Split = Literal["warmup", "train", "eval"]
SPLITS: tuple[Split, ...] = get_args(Split)
SPLIT_SIZE = 100_000_000
"""Seeds per split: task n of split i has the seed i · SPLIT_SIZE + n."""
SEED_STRIDE = 1_000_003
"""Distance between the first tasks of neighbouring run seeds, so that their tasks differ."""


@runtime_checkable
class TextEnv(Environment, Protocol):
    """A text environment with a Gymnasium-like interface. Plays one attempt at a time.

    `reset(seed=…, options=…)` returns (observation, info), `step(action)` returns (observation,
    reward, terminated, truncated, info); observations and actions are text. An instance plays many
    attempts, so `reset` must bring it back to the initial state. `spec` declares everything else,
    such as the step limit (`r3l.rollout.env_interface.EnvSpec`).

    Optional methods, found by attribute:

    - `snapshot() -> bytes`, `restore(bytes)`: save and restore the whole state of the attempt;
    - `feedback() -> str`: a closing remark on the finished attempt;
    - `demonstration() -> list[str]`: actions that succeed from where `reset` left off;
    - `right_answers() -> list[str]`: after `reset`, the responses that succeed, in every spelling
      that matters, if the first response decides the attempt; otherwise []. Evaluations then
      measure their exact probability (`eval.exact`).

    Optional in `info`: `admissible`, the actions that are understood now; `fault`, the name of an
    environment error that is counted but does not end the attempt; `rewards`, a dict of named parts
    of the step's reward, which are reported separately.

    Optional on the class:

    - `task_source(**options) -> TaskSource`; if absent, every seed is a task;
    - `in_process = True`: quick and safe enough to run inside the actor (envs.isolation.pool);
    - `once = True`: an instance is closed after one attempt; the next attempt gets a new instance;
    - `replans = True`: `demonstration` may be called at any step, and takes none.
    """


@dataclass(frozen=True)
class Skill:
    """The skill of a demonstrator; by default perfect.

    `withheld`: number of rules that the demonstrator does not know and has to guess. Probabilities
    per step: `mistakes`: of a random answer; `waste`: of a step that does nothing; `certainty`:
    of knowing a withheld rule after all.
    """

    withheld: int = 0
    mistakes: float = 0.0
    waste: float = 0.0
    certainty: float = 0.0


@runtime_checkable
class Demonstrating(TextEnv, Protocol):
    """An environment with a demonstrator, for a warm-up.

    Optional methods, found by attribute:

    - `practice() -> list[dict]`: options for variants of the environment. Lessons play each variant
      equally often. Without the method, lessons play the environment as it is configured.
    - `told() -> dict`: options for a variant in which the observations say what each step needs.
    """

    def snapshot(self) -> bytes:
        """Returns the whole state of the attempt."""

    def restore(self, state: bytes) -> None:
        """Restores a state that `snapshot` returned."""

    def feedback(self) -> str:
        """Returns a closing remark on the finished attempt."""

    def demonstrate(self, skill: Skill, rng: random.Random, advice: str = "") -> str:
        """Returns the demonstrator's next action. `advice`: what a reflection suggests, or ""."""

    def reflection(self) -> dict[str, Any]:
        """Returns a teacher's reflection on the finished attempt, with the fields
        r3l.rollout.reflection.FIELDS."""

    def vocabulary(self) -> Iterable[str]:
        """Returns texts that together hold every word that the environment says or understands."""


class TaskSource(Protocol):
    """A source of an environment's tasks."""

    def tasks(self, split: Split, count: int, seed: int = 0, start: int = 0) -> list[Task]:
        """Returns at most `count` tasks of a split. The same arguments give the same tasks, and a
        task's `task_id` never changes."""


@dataclass(frozen=True)
class SeededTasks:
    """Tasks that differ only in the seed given to `reset`. No two splits share a seed."""

    env: str

    def tasks(self, split: Split, count: int, seed: int = 0, start: int = 0) -> list[Task]:
        """Returns `count` tasks of a split, beginning with task number `start`. `seed` shifts the
        numbering. Raises UserError for an unknown split."""
        check_split(split)
        first, base = seed * SEED_STRIDE + start, SPLITS.index(split) * SPLIT_SIZE
        numbers = ((first + i) % SPLIT_SIZE for i in range(count))
        # The tasks of a user's class have the same ids, and so the same seeds, in every folder.
        name = Path(self.env).name if Path(self.env).is_absolute() else self.env
        return [Task(f"{name}/{split}/{n:06d}", self.env, base + n) for n in numbers]


@dataclass(frozen=True)
class ListedTasks:
    """A finite list of tasks for each split. `tasks` shuffles the list, so that even a sorted list
    gives a mix. Raises UserError for an unknown split, or if two tasks of a split have one id."""

    listed: Mapping[Split, Sequence[Task]]

    def __post_init__(self) -> None:
        for split, tasks in self.listed.items():
            check_split(split)
            names = Counter(task.task_id for task in tasks if isinstance(task, Task))
            if len(names) < len(tasks) and names and (often := names.most_common(1)[0])[1] > 1:
                raise UserError(
                    f"split {split}: {often[1]} tasks have the id {often[0]!r:.80}; give each an "
                    "id of its own, such as its line number"
                )

    def tasks(self, split: Split, count: int, seed: int = 0, start: int = 0) -> list[Task]:
        """Shuffles a split by `seed`. Returns up to `count` tasks, beginning with task number
        `start`. Raises UserError for an unknown split."""
        check_split(split)
        order = list(self.listed.get(split, ()))
        random.Random(f"{split}/{seed}").shuffle(order)
        return order[start : start + count]


def split_of(what: str) -> Split:
    """Returns the split of a text, chosen by a hash. A tenth of all texts is for evaluation and a
    tenth for warm-up."""
    share = zlib.crc32(what.encode()) % 10
    return "eval" if share == 0 else "warmup" if share == 1 else "train"


def check_split(split: str) -> None:
    """Raises UserError for an unknown split."""
    if split not in SPLITS:
        raise UserError(f"split {split!r}: unknown; choose from {', '.join(SPLITS)}")
