"""A small store with something in every table."""

import msgspec
import numpy as np

from buffer.groups import retention
from buffer.storage import result_checksums
from buffer.storage.stored_rows import DrawRow, ProgressLink
from r3l import codec
from r3l.records import (
    AttemptKey,
    Extra,
    GroupPlan,
    Origin,
    Shown,
    SlotResult,
    Task,
    Trajectory,
    done,
)
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import finished, thought

SAMPLER = {"name": "prioritised", "reuse": 2, "cooldown": 1, "beta": 0.5}
SETTINGS = {"max_staleness": 3, "groups_per_step": 2, "sampler": SAMPLER}
TASKS = [
    Task("t0", "workshop", 1, {"nested": [1, 2.5, None, {"a": True}], "text": 'ü\n"'}),
    Task("t1", "workshop", -(1 << 40)),
    *(Task(f"t{number}", "gsm8k", number) for number in range(2, 6)),
]


def retried():
    """A retry of two steps with everything that may hang on it."""
    logprobs = np.array([0, -0.5, -1e-42, 0, 0, -0.0, 0], dtype=np.float32)  # a denormal, -0.0
    seconds = np.array([0.25, 1e-3], "f4")
    seconds.view(np.uint32)[1] = 0x7FC0_1234  # not a number, and says why
    attempt = Trajectory(
        slot=2, token_ids=np.array([0, 2**31 - 1, -(2**31), 3, 4, 5, 6], "i4"),
        logprobs=logprobs, step_spans=np.array([[1, 3], [5, 6]], "i4"),
        step_versions=np.array([1, 1], "i4"), step_newest_versions=np.array([1, 1], "i4"),
        step_seconds=seconds,
        reward=0.1 + 0.2, system="be brief", observations=("saw", "ü", ""), actions=("do", ""),
        of=0, pivot=1, reflection="reflect-0", shown=Shown(np.array([9, -9], "i4"), 1, 3),
        source="a file", finish="truncated", feedback="cause: \0", faults=("timeout", "timeout"),
        extra=Extra(reward_parts={"format": 0.1 + 0.2}, scores={"judge": -0.25}),
    )  # fmt: skip
    return done(attempt)


def advice():
    """The reflection that advised `retried`."""
    return thought(text='{"pivot": 1}', outcome="failure", pivot=1, tokens=9, version=1)


def skipped(slot):
    """A retry that was not called for."""
    return SlotResult(slot, "skipped", cause="not_triggered", of=0)


def no_advice():
    """The reflection that led to `skipped`."""
    return thought(text="no idea", cause="not_json", version=1, seconds=0.25)


def fill(desk):
    """Groups of every state; draws with every outcome but expired; tombs, drops, evaluations."""

    def whole(version, plan, *results):
        group = desk.lease(version=version, plan=plan).group_id
        desk.put(group, list(results), fingerprint=(version, f"hash-{version}"))
        return group

    desk.add(TASKS)
    for reward in (0.0, 1.0):
        whole(0, GroupPlan(1), finished(reward=reward))
    desk.commit(desk.draw(2).draw_id, 1)
    desk.do(lambda work: retention.evict(work, RetentionConfig(groups=1, grace_s=0.0)))
    failed = SlotResult(1, "failed", cause="env")
    whole(1, GroupPlan(3), advice(), retried(), failed, finished(version=1, reward=1.0))
    origin = Origin("g0000000002", 0, 0)
    begun = finished(version=1, length=300, origin=origin, pivot=0)
    whole(1, GroupPlan(2), skipped(1), begun, no_advice())
    desk.draw(2, 1)
    desk.release_draws()
    desk.commit(desk.draw(2, 1).draw_id, 2)
    desk.set_version(1)
    desk.commit(desk.draw(2, 1).draw_id, 2)
    whole(2, GroupPlan(1), finished(version=2))
    desk.discard(desk.draw(1, 2).draw_id, "nonfinite")
    whole(2, GroupPlan(1), SlotResult(0, "failed", cause="engine"))
    for reward in (0.5, -0.25, 0.75):
        whole(
            2,
            GroupPlan(2),
            finished(version=2),
            finished(1, version=2, reward=reward),
        )
    desk.draw(2, 2)
    half = desk.lease("b", 2, GroupPlan(4)).group_id
    desk.put(half, [finished(2, version=2, reward=0.125)], "b", (2, "hash-2"))
    more = [skipped(3), no_advice(), SlotResult(0, "failed", cause="env")]
    desk.put(half, more, "b", (2, "another"))
    desk.put_partial(half, finished(1, version=2), "b")
    desk.lease("c", 2, GroupPlan(2, "again", (AttemptKey("g0000000002", 0),)))
    desk.add([Task("e0", "workshop", 0), Task("e1", "workshop", 1)], "eval", "step-2", 2)
    whole(2, GroupPlan(1), finished(version=2, reward=1.0))
    desk.lease("c", 2)


def contents(store):
    """Everything of a store that its readers can see, as plain JSON values."""
    with store.read() as txn:
        draws = [codec.decode(DrawRow, data) for _, data in txn.scan("draw")]
        return {
            "groups": [plain(result_checksums.read(txn, row)) for row in txn.rows()],
            "draws": [plain(draw) for draw in draws],
            "ledger": [plain(step) for step in txn.steps()],
            "partial": [plain(codec.decode(ProgressLink, d)) for _, d in txn.scan("partial")],
            "tombs": [key.decode() for key, _ in txn.scan("tomb")],
            "counts": dict(txn.counts()),
            "progress": plain(txn.progress()),
        }


def plain(record):
    """A record as JSON can hold it, bit by bit."""
    return msgspec.to_builtins(record, enc_hook=_bits, str_keys=True)


def _bits(array):
    return [array.dtype.str, list(array.shape), array.tobytes().hex()]
