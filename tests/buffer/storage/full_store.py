"""A small store with something in every table."""

import msgspec
import numpy as np

from buffer.groups import retention
from buffer.storage import result_checksums
from buffer.storage.rows import DrawRow
from r3l import codec
from r3l.records import AuxSample, Extra, GroupPlan, ReflectionRecord, SlotResult, Task, Trajectory
from r3l.run.settings.buffer import RetentionConfig
from tests.buffer.fakes import finished

SAMPLER = {"name": "prioritised", "reuse": 2, "cooldown": 1, "beta": 0.5}
SETTINGS = {"max_staleness": 3, "groups_per_step": 2, "sampler": SAMPLER}
TASKS = [
    Task("t0", "workshop", 1, {"nested": [1, 2.5, None, {"a": True}], "text": 'ü\n"'}),
    Task("t1", "workshop", -(1 << 40)),
    *(Task(f"t{number}", "gsm8k", number) for number in range(2, 6)),
]


def retried():
    """A distilled attempt of two steps with everything that may hang on it."""
    logprobs = np.array([0, -0.5, -1e-42, 0, 0, -0.0, 0], dtype=np.float32)  # a denormal, -0.0
    seconds = np.array([0.25, 1e-3], "f4")
    seconds.view(np.uint32)[1] = 0x7FC0_1234  # not a number, and says why
    attempt = Trajectory(
        role="distilled", slot=0, token_ids=np.array([0, 2**31 - 1, -(2**31), 3, 4, 5, 6], "i4"),
        logprobs=logprobs, step_spans=np.array([[1, 3], [5, 6]], "i4"),
        step_versions=np.array([1, 1], "i4"), step_newest_versions=np.array([1, 1], "i4"),
        step_seconds=seconds,
        reward=0.1 + 0.2, system="be brief", observations=("saw", "ü", ""), actions=("do", ""),
        parent=0, pivot=1, finish="truncated", feedback="cause: \0",
        faults=("timeout", "timeout"), extra=Extra(reward_parts={"format": 0.1 + 0.2}),
    )  # fmt: skip
    aux = AuxSample("reflect", np.array([1, -2], "i4"), np.array([False, True]))
    said = ReflectionRecord('{"pivot": 1}', outcome="failure", pivot=1, tokens=9, version=1)
    return SlotResult("distilled", 0, "done", trajectory=attempt, reflection=said, aux=(aux, aux))


def skipped():
    """A retry that was not called for, with the reflection that said so."""
    said = ReflectionRecord("no idea", "no_json", tokens=3, version=1, seconds=0.25)
    return SlotResult("distilled", 0, "not_triggered", reflection=said)


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
    failed = SlotResult("base", 1, "failed", cause="env")
    whole(1, GroupPlan(2, 1), retried(), failed, finished(version=1, reward=1.0))
    whole(1, GroupPlan(1, 1), skipped(), finished(version=1, length=300))
    desk.draw(2, 1)
    desk.release_draws()
    desk.commit(desk.draw(2, 1).draw_id, 2)
    desk.set_version(1)
    desk.commit(desk.draw(2, 1).draw_id, 2)
    whole(2, GroupPlan(1), finished(version=2))
    desk.discard(desk.draw(1, 2).draw_id, "nonfinite")
    whole(2, GroupPlan(1), SlotResult("base", 0, "failed", cause="engine"))
    for reward in (0.5, -0.25, 0.75):
        whole(
            2,
            GroupPlan(2),
            finished(version=2),
            finished("base", 1, version=2, reward=reward),
        )
    desk.draw(2, 2)
    half = desk.lease("b", 2, GroupPlan(3, 1)).group_id
    desk.put(half, [finished("base", 2, version=2, reward=0.125)], "b", (2, "hash-2"))
    desk.put(half, [skipped(), SlotResult("base", 0, "failed", cause="env")], "b", (2, "another"))
    desk.put_partial(half, finished("base", 1, version=2), "b")
    desk.lease("c", 2, GroupPlan(2))
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
            "partial": [plain(codec.decode(SlotResult, d)) for _, d in txn.scan("partial")],
            "tombs": [key.decode() for key, _ in txn.scan("tomb")],
            "counts": dict(txn.counts()),
            "progress": plain(txn.progress()),
        }


def plain(record):
    """A record as JSON can hold it, bit by bit."""
    return msgspec.to_builtins(record, enc_hook=_bits, str_keys=True)


def _bits(array):
    return [array.dtype.str, list(array.shape), array.tobytes().hex()]
