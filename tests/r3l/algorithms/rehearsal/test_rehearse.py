"""A rehearsal: sound algorithms pass, and one bad algorithm for each rule is told in one line."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from r3l.algorithms.published.grpo import GRPO
from r3l.algorithms.rehearsal import rehearse as module
from r3l.algorithms.rehearsal.rehearse import rehearse
from r3l.errors import UserError
from r3l.run.config import load
from tests.r3l.algorithms.fakes import NAMES, get

HEAD = """
import asyncio
import time

import numpy as np
from pydantic import Field

from r3l.algorithms import losses, rows
from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.published.grpo import GRPO
from r3l.algorithms.queries import Query, key_of
from r3l.algorithms.r3l import R3L
from r3l.records import AttemptKey, GroupPlan, Origin


class Mine({base}):
{body}
"""


@pytest.fixture
def mine(tmp_path):
    """An algorithm in a file of the user's."""

    def make(body, base="Algorithm", *settings):
        lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
        file = tmp_path / f"mine{len(list(tmp_path.iterdir()))}.py"
        file.write_text(HEAD.format(base=base, body=lines))
        return load(None, [f"algorithm={file}:Mine", *settings]).algorithm

    return make


def refusal(algorithm):
    with pytest.raises(UserError) as caught:
        rehearse(algorithm)
    line = str(caught.value)
    assert line.startswith(f"algorithm {algorithm.name}: ") and "\n" not in line
    return line.removeprefix(f"algorithm {algorithm.name}: ")


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_of_r3l_would_pass(name):
    kind = type(get(name))

    class Mine(kind):
        name: str = "my.py:Mine"

        def token_loss(self, batch):  # so that its loss is tried
            return super().token_loss(batch)

    rehearse(Mine())


FILES = Path(__file__).parents[3] / "plug" / "files"
KINDS = [
    f"{file}:{kind}"
    for file in sorted(FILES.glob("*.py"))
    for kind in re.findall(r"^class (\w+)", file.read_text("utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("name", KINDS)
def test_the_users_files_that_the_plug_is_tested_with_pass(name):
    rehearse(load(None, [f"algorithm={name}"]).algorithm)


def test_algorithms_of_r3l_are_not_tried():
    class Broken(GRPO):
        def plan(self, lease):
            raise AssertionError

    rehearse(Broken())


def test_a_rehearsal_is_quick_and_needs_no_torch_unless_there_is_a_loss(mine):
    algorithm = mine("pass", "R3L")
    code = (
        "import sys, time\n"
        "from r3l.run.config import load\n"
        "from r3l.algorithms.rehearsal.rehearse import rehearse\n"
        "began = time.monotonic()\n"
        f"rehearse(load(None, ['algorithm={algorithm.name}']).algorithm)\n"
        "assert time.monotonic() - began < 3 and 'torch' not in sys.modules\n"
    )
    root = Path(__file__).parents[4]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


USER = '''
"""Starts in stored successes, asks for entropies, imitates, and has a loss of its own."""

share: float = Field(0.5, description="of the bonus")

def plan(self, lease):
    won = [each for each in lease.history if each.success]
    handed = tuple(AttemptKey(each.group_id, each.slot) for each in won[:1])
    return GroupPlan(self.group_size, "continued" if handed else "", handed)

async def explore(self, x):
    for each in x.handed:
        place = Origin(each.group_id, each.trajectory.slot, 1)
        await x.play(0, start=place)
    await super().explore(x)

@property
def needs(self):
    return ("averaged",)

def queries(self, batch):
    return [
        Query(key_of(find, source), source.attempt.token_ids, source.attempt.response_mask,
              find, weights, k=3 if find == "topk" else 0)
        for group in batch.groups
        for source in batch.sources(group)
        for find, weights in (("entropy", "current"), ("topk", "averaged"))
    ]

def rows(self, batch):
    made = super().rows(batch)
    for group in batch.groups:
        for source in batch.sources(group):
            found = batch.answers[key_of("entropy", source)]
            assert (found[source.attempt.response_mask] > 0).all()
            assert batch.answers[key_of("topk", source)].logprobs.shape[1] == 3
    first = batch.groups[0].trajectories[0]
    return made + [rows.supervised(first.token_ids, first.response_mask, 0.1, loss="world")]

def loss(self, batch):
    own = batch.of("world").masked()
    return super().loss(batch) | {"world": self.share * own.total(losses.sft(own)[0])}
'''


def test_an_algorithm_that_uses_every_method_passes(mine):
    began = time.monotonic()
    rehearse(mine(USER, "GRPO", "algorithm.kl_coef=0"))
    assert time.monotonic() - began < 5


def test_help_only_where_all_attempts_failed_passes(mine):
    rehearse(
        mine(
            """
async def explore(self, x):
    half = x.plan.slots // 2
    await x.each(range(half), x.play)
    failed = [one for one in x.attempts if one.reward < 1]
    for slot in range(half, x.plan.slots):
        if len(failed) == half:
            await x.retry(slot, of=slot - half, pivot=1, guidance="open it")
        else:
            await x.skip(slot, "some succeeded", of=slot - half)
"""
        )
    )


def test_queries_that_leave_out_those_of_their_base_are_told(mine):
    line = refusal(mine(USER, "GRPO"))
    assert line.startswith("loss: raised ValueError: the KL needs the reference model's")


PLAN, QUERIES, ROWS = "plan: ", "queries: ", "rows: "
EXPLORE = "explore, in a group of mixed attempts: "
BAD = {
    "a plan that is none": (
        "def plan(self, lease): return 8",
        PLAN + "returned 8; return a GroupPlan",
    ),
    "a plan without slots": (
        "def plan(self, lease): return GroupPlan(0)",
        PLAN + "planned 0 slots",
    ),
    "a plan of too many slots": (
        "def plan(self, lease): return GroupPlan(2000)",
        PLAN + "planned 2000 slots; plan 1 to 1024",
    ),
    "a kind that is not text": (
        "def plan(self, lease): return GroupPlan(2, 1)",
        PLAN + "returned the kind 1; it must be text",
    ),
    "an attempt that is not stored": (
        'def plan(self, lease): return GroupPlan(2, "", (AttemptKey("g9", 0),))',
        PLAN + "hands out AttemptKey(group_id='g9', slot=0); name attempts of lease.history",
    ),
    "a plan that raises": (
        "def plan(self, lease): return GroupPlan(lease.slots)",
        PLAN + "raised AttributeError: 'LeaseFacts' object has no attribute 'slots' (",
    ),
    "a plan that hangs": (
        "def plan(self, lease):\n    while True: pass",
        PLAN + "took more than 0.5 s; a method must not wait or work for long",
    ),
    "admits that returns no text": (
        "def admits(self, group): return True",
        'admits: returned True; return "" or a cause, as text',
    ),
    "admits whose cause cannot be stored": (
        'def admits(self, group): return "x" * 999',
        "admits: cause 'xxx",
    ),
    "admits that exits": ("def admits(self, group): exit(3)", "admits: raised SystemExit: 3 ("),
    "recalls that returns nothing": (
        "def recalls(self, group, history, random): pass",
        "recalls: returned None; return a list of attempts of `history`",
    ),
    "recalls of what is not stored": (
        "def recalls(self, group, history, random): return [3]",
        "recalls: returned [3]; return a list",
    ),
    "explore without a verb": (
        "async def explore(self, x): pass",
        EXPLORE + "explore ended without a result for slot 0; call play, retry, skip or fail",
    ),
    "explore that forgets a slot": (
        "async def explore(self, x): await x.each(range(1, x.plan.slots), x.play)",
        EXPLORE + "explore ended without a result for slot 0",
    ),
    "explore beyond the plan": (
        "async def explore(self, x): await x.each(range(9), x.play)",
        EXPLORE + "explore raised PlanError: slot 8: the plan of this group has slots 0 to 7",
    ),
    "a retry of nothing": (
        "async def explore(self, x): await x.retry(0, of=1, pivot=0)",
        EXPLORE + "explore raised PlanError: retry of slot 1: it holds no attempt",
    ),
    "explore that is no coroutine": (
        "def explore(self, x): return None",
        EXPLORE + "explore raised PlanError: it must be a coroutine; write `async def explore",
    ),
    "explore that waits for nothing": (
        "async def explore(self, x): await asyncio.Event().wait()",
        EXPLORE + "explore waits for ",
    ),
    "explore that works forever": (
        "async def explore(self, x):\n    while True: pass",
        EXPLORE + "explore raised TimeoutError: took more than 2 s",
    ),
    "an error in groups of failures alone": (
        "async def explore(self, x):\n"
        "    await super().explore(x)\n"
        "    assert max(one.reward for one in x.attempts) > 0, 'all failed'",
        "explore, in a group of failed attempts: explore raised AssertionError: all failed",
    ),
    "an error in groups of successes alone": (
        "async def explore(self, x):\n"
        "    await super().explore(x)\n"
        "    next(one for one in x.attempts if one.reward < 1)",
        "explore, in a group of successful attempts: explore raised",
    ),
    "what cannot go on on another actor": (
        "async def explore(self, x):\n"
        "    assert not x.attempts, 'begun'\n"
        "    await super().explore(x)",
        "explore, in a group continued by another actor: explore raised AssertionError: begun",
    ),
    "a query that is none": (
        "def queries(self, batch): return [1]",
        "queries: returned 1; return a list",
    ),
    "weights that are not held": (
        "def queries(self, batch):\n"
        "    ids = np.arange(3, dtype=np.int32)\n"
        "    return [Query('mine', ids, ids > 0, weights='reference')]",
        QUERIES + "query 'mine': it asks for logprobs under the reference weights; ask for one of",
    ),
    "advantages of another length": (
        "def weigh(self, rewards, attempts, recalled=0): return rewards[:-1]",
        ROWS + "group ",
    ),
    "advantages that are not finite": (
        "def weigh(self, rewards, attempts, recalled=0): return rewards / 0",
        ROWS + "group ",
    ),
    "a place that a failed slot does not have": (
        "def weigh(self, rewards, attempts, recalled=0):\n"
        "    return np.array([rewards[one.slot] for one in attempts])",
        ROWS + "raised IndexError",
    ),
    "masks of another length": (
        "def masks(self, attempts): return [one.response_mask[1:] for one in attempts]",
        ROWS + "group ",
    ),
    "rows of other lengths than their tokens": (
        "def rows(self, batch):\n"
        "    from dataclasses import replace\n"
        "    return [replace(r, advantages=r.advantages[1:]) for r in super().rows(batch)]",
        ROWS + "a row of ",
    ),
    "rows that are none": (
        "def rows(self, batch): return [1]",
        ROWS + "returned 1; return a list of Row",
    ),
    "a row without tokens": (
        "def rows(self, batch):\n"
        "    one = batch.groups[0].trajectories[0]\n"
        "    return [rows.supervised(one.token_ids, one.response_mask & False)]",
        ROWS + "a row has no tokens; leave it out",
    ),
    "a loss that is one number": (
        "def loss(self, batch): return batch.total(batch.logprobs_BT)",
        "loss: it returned tensor(",
    ),
    "a part that is a matrix": (
        'def loss(self, batch): return {"policy": batch.logprobs_BT}',
        "loss: it returned tensor(",
    ),
    "a loss that is not finite": (
        'def loss(self, batch): return {"policy": batch.total(batch.logprobs_BT / 0)}',
        "loss: its part 'policy' is -inf; bound ratios and divisions",
    ),
    "a loss without a gradient": (
        'def loss(self, batch): return {"policy": batch.total(batch.logprobs_BT.detach())}',
        "loss: it has no gradient; compute it from batch.logprobs_BT, not detached",
    ),
    "a gradient that is not finite": (
        'def loss(self, batch): return {"policy": batch.total((batch.logprobs_BT * 0).sqrt())}',
        "loss: its gradient is not finite; bound ratios and divisions",
    ),
    "a loss that does not add up": (
        "def loss(self, batch): return {'policy': (batch.logprobs_BT * batch.mask_BT).mean()}",
        "loss: the losses of single rows add up to ",
    ),
    "a loss that differs on a rank that made no rows": (
        "_factor: float = 0.5\n"
        "def rows(self, batch):\n"
        "    self._factor = 2.0\n"
        "    return super().rows(batch)\n"
        "def loss(self, batch): return {'policy': self._factor * super().loss(batch)['policy']}",
        "loss: on ranks other than 0, which never call `rows`, its part 'policy' is ",
    ),
    "a loss that cannot be computed on a rank that made no rows": (
        "_factors: list = []\n"
        "def rows(self, batch):\n"
        "    self._factors.append(2.0)\n"
        "    return super().rows(batch)\n"
        "def token_loss(self, batch):\n"
        "    term, measured = super().token_loss(batch)\n"
        "    return self._factors[0] * term, measured",
        "loss: on ranks other than 0, which never call `rows`, it raised IndexError: list index ",
    ),
    "metrics of another section": (
        'def metrics(self, groups): return {"learner/speed": 1.0}',
        "metrics: measures 'learner/speed'; a name begins with group/",
    ),
    "a loss that raises": (
        "def token_loss(self, batch): return batch.logprobs_BT[99]",
        "loss: raised IndexError",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_rule_that_is_broken_is_told_in_one_line(mine, what, monkeypatch):
    monkeypatch.setattr(module, "SERVICE_S", 0.5)
    monkeypatch.setattr(module, "STALL_S", 1.0)
    monkeypatch.setattr(module, "OTHERS_S", 2.0)
    body, said = BAD[what]
    line = refusal(mine(body))
    assert line.startswith(said), line


def test_the_place_of_an_error_is_told(mine):
    algorithm = mine("x: int = 0\ndef plan(self, lease): return 1 / 0")
    file = algorithm.name.rpartition(":")[0]
    assert refusal(algorithm).endswith(f"raised ZeroDivisionError: division by zero ({file}:18)")


@pytest.mark.parametrize(("slots", "times"), [("8", 4), ("1024", 1)])
def test_a_large_group_is_tried_once(mine, tmp_path, slots, times):
    note = f"open({str(tmp_path / 'tried')!r}, 'a').write('.')"
    body = f"async def explore(self, x):\n    {note}\n    await super().explore(x)"
    rehearse(mine(body, "Algorithm", f"algorithm.group_size={slots}"))
    assert (tmp_path / "tried").read_text() == "." * times
