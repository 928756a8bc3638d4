"""What the algorithms' tests share: an algorithm by name, its batches, and its loss written out."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np

from r3l.algorithms import losses, registry, rows
from r3l.algorithms.batch import Batch
from r3l.algorithms.facts import GroupFacts, LeaseFacts, StoredAttempt
from r3l.records import Group, GroupPlan, Recalled, ReflectionRecord, Task, done

NAMES = sorted(registry.REGISTRY)
TASK = Task("t", "e", 0)


def get(name="r3l", **settings):
    """The algorithm of that name with these settings."""
    return registry.REGISTRY[name](**settings)


def random_source():
    return np.random.default_rng(0)


def planned(algorithm, **more):
    """The plan of its next group."""
    facts = {"task_id": "t", "epoch": 0, "version": 0, "history": (), "gains": ()}
    return algorithm.plan(LeaseFacts(**facts | {"random": random_source} | more))


def facts_of(rewards, version=0):
    """A group of attempts that retried nothing."""
    return GroupFacts("t", rewards, (-1,) * len(rewards), version)


def stored(name, reward, version=0):
    """An attempt of another group."""
    return StoredAttempt(name, 0, reward, version)


def history_of(*groups):
    """The stored attempts of a task's groups, newest group first. Each is (kind, rewards)."""
    names = [f"g{len(groups) - number}" for number in range(len(groups))]
    return [
        StoredAttempt(name, slot, reward, 0, kind=kind)
        for name, (kind, rewards) in zip(names, groups, strict=True)
        for slot, reward in enumerate(rewards)
    ]


def plans_of(algorithm, *groups, seeds=400):
    """How often each plan is made of this history, (kind, group, slot) or ()."""
    found = Counter()
    for seed in range(seeds):
        history = iter(history_of(*groups))
        random = partial(np.random.default_rng, seed)
        plan = planned(algorithm, history=history, random=random)
        found[(plan.kind, *((k.group_id, k.slot) for k in plan.handed)) if plan.handed else ()] += 1
    return found


def group_of(attempts, reflections=(), name="g"):
    """A trained group."""
    results = tuple(map(done, attempts))
    plan = GroupPlan(max((attempt.slot for attempt in attempts), default=0) + 1)
    return Group(name, TASK, plan, "trained", results, tuple(reflections))


def thought_about(of, outcome="failure", name=None, tokens=(1, 2, 3, 4), start=2, **more):
    """A reflection of four tokens, two of them the policy's."""
    ids = np.array(tokens, np.int32)
    name = name or f"reflect-{of}"
    logprobs = np.zeros(len(ids), np.float32)
    return ReflectionRecord(name, "text", ids, logprobs, start, of=of, outcome=outcome, **more)


def batch_of(attempts, recalled=0, **more):
    """A batch of one group. The last `recalled` attempts are from another one."""
    own = attempts[: len(attempts) - recalled]
    joined = [Recalled("g", f"old{i}", each) for i, each in enumerate(attempts[len(own) :])]
    return Batch([group_of(own)], recalled=joined, **more)


def advantages_of(algorithm, attempts, recalled=0):
    """Advantages of a group by its own rewards, and which attempts are kept."""
    [values] = algorithm.advantages(batch_of(attempts, recalled))
    return rows.plain(values), rows.kept(values)


def loss_of(algorithm, batch):
    """The loss of a micro-batch, and what was measured in it."""
    batch = replace(batch, measured={})
    return sum(algorithm.loss(batch).values()), batch.measured


def total(batch, loss, **options):
    """The loss of a batch by one of `losses`."""
    batch = batch.masked().with_unit_ratios()
    return batch.total(loss(batch, **options)[0]).item()


def kl_of(batch, estimate=losses.k3_kl):
    """The KL of a batch to its reference."""
    batch = batch.masked()
    return batch.total(estimate(batch)).item()
