"""Lists the tasks in the jar of scienceworld 1.2.3.
tests/envs/adapters/scienceworld/test_scienceworld.py compares the list with the jar."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from envs.base import SPLIT_SIZE, ListedTasks, Split
from envs.base import SPLITS as SPLITS_OF_TASKS
from r3l.errors import UserError
from r3l.records import Task

_TABLE = """
boil 14 7 9 66
change-the-state-of-matter-of 14 7 9 58
chemistry-mix 16 8 8 39
chemistry-mix-paint-secondary-color 18 9 9 21
chemistry-mix-paint-tertiary-color 18 9 9 29
find-animal 150 75 75 16
find-living-thing 150 75 75 16
find-non-living-thing 150 75 75 7
find-plant 150 75 75 12
freeze 14 7 9 81
grow-fruit 62 31 33 63
grow-plant 62 31 33 67
identify-life-stages-1 6 3 5 41
identify-life-stages-2 4 2 4 17
inclined-plane-determine-angle 84 42 42 79
inclined-plane-friction-named-surfaces 692 346 348 65
inclined-plane-friction-unnamed-surfaces 80 40 42 180
lifespan-longest-lived 62 31 32 6
lifespan-longest-lived-then-shortest-lived 62 31 32 7
lifespan-shortest-lived 62 31 32 6
measure-melting-point-known-substance 218 109 109 27
measure-melting-point-unknown-substance 150 75 75 32
melt 14 7 9 34
mendelian-genetics-known-plant 60 30 30 127
mendelian-genetics-unknown-plant 240 120 120 132
power-component 10 5 5 13
power-component-renewable-vs-nonrenewable-energy 10 5 5 28
test-conductivity 450 225 225 21
test-conductivity-of-unknown-substances 300 150 150 37
use-thermometer 270 135 135 22
"""
"""Task; number of variations in train, dev and test; steps of the longest of three gold paths."""


_ROWS = [line.split() for line in _TABLE.split("\n") if line]
SPLITS = {name: (int(train), int(dev), int(test)) for name, train, dev, test, _ in _ROWS}
"""Number of variations in train, dev and test. Variations are numbered in this order, from 0."""
LIMITS = {name: max(30, 3 * int(gold) // 2) for name, *_, gold in _ROWS}
"""Step limit of each task: 1.5 times its longest gold path, at least 30."""


def named(patterns: Sequence[str] | None) -> list[str]:
    """Returns the task names that match a pattern, such as `find-*`. If `patterns` is None, returns
    all names. Raises UserError if the list is empty or a pattern matches nothing."""
    if patterns is not None and (isinstance(patterns, str) or not patterns):
        raise UserError(f"env option tasks: must be a list of names or patterns, not {patterns!r}")
    for pattern in patterns or ():
        if not any(fnmatchcase(name, pattern) for name in SPLITS):
            raise UserError(
                f"env option tasks: {pattern!r} is unknown; choose from {', '.join(SPLITS)}"
            )
    wanted = patterns or ["*"]
    return [name for name in SPLITS if any(fnmatchcase(name, pattern) for pattern in wanted)]


def listed(
    patterns: Sequence[str] | None, eval_patterns: Sequence[str] | None = None
) -> ListedTasks:
    """Lists the variations of the named tasks. Upstream's dev split is for warm-up, and
    the test split for evaluation. `eval_patterns`: evaluated tasks, by default `patterns`."""
    tested = patterns if eval_patterns is None else eval_patterns
    train, dev, test = (_variations(*each) for each in ((patterns, 0), (patterns, 1), (tested, 2)))
    return ListedTasks({"warmup": dev, "train": train, "eval": test})


def _variations(patterns: Sequence[str] | None, split: int) -> list[Task]:
    """Lists the variations of the named tasks in train (0), dev (1) or test (2)."""
    return [
        _task(name, number)
        for name in named(patterns)
        for number in range(sum(SPLITS[name][:split]), sum(SPLITS[name][: split + 1]))
    ]


def task_of_seed(tasks: ListedTasks, seed: int) -> Task:
    """Returns the task of a seed, from the split that owns the seed (envs.base.SPLIT_SIZE)."""
    split: Split = SPLITS_OF_TASKS[min(max(seed, 0) // SPLIT_SIZE, len(SPLITS_OF_TASKS) - 1)]
    variations = tasks.tasks(split, len(tasks.listed[split]))
    return variations[seed % len(variations)]


def _task(name: str, variation: int) -> Task:
    options = {"task": name, "variation": variation, "family": name}
    return Task(f"scienceworld/{name}/{variation}", "scienceworld", variation, options)
