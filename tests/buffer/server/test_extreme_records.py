"""The longest, shortest and strangest attempts come out of a real service as they went in."""

import numpy as np
import pytest
from msgspec.structs import replace

from buffer import BufferClient
from buffer.storage.store import Store
from buffer.tools import store_reads
from r3l import codec
from r3l.records import GroupPlan, SlotResult, Trajectory
from tests.buffer.fakes import thought
from tests.buffer.storage.full_store import retried, skipped

pytestmark = pytest.mark.system

LONGEST = 1_000_000  # tokens; about what a record may have


def _long(slot, length):
    """One token, as many as a record may have, or between; every float that a log-probability can
    be is among them."""
    bits = np.random.default_rng(slot).integers(0, 1 << 32, length, dtype=np.uint32)
    negative = bits | 0x8000_0000
    negative[negative >= 0xFF80_0000] = 0xFF7F_FFFF  # infinities and NaN
    attempt = Trajectory(
        slot=slot, token_ids=bits.view(np.int32),
        logprobs=negative.view(np.float32),
        step_spans=np.array([[0, length]], np.int32), step_versions=np.zeros(1, np.int32),
        step_newest_versions=np.array([1], np.int32),
        step_seconds=np.array([0x7FA00001], np.uint32).view(np.float32), reward=-0.0,
        system="", observations=("", ""), actions=("",),
    )  # fmt: skip
    return SlotResult(slot, "done", trajectory=attempt)


def test_bytes_out_are_bytes_in(serve, tasks):
    sent = [
        _long(0, 1), _long(1, LONGEST), _long(2, 4097), skipped(4),
        replace(retried(), slot=3, trajectory=replace(retried().trajectory, slot=3)),
    ]  # fmt: skip
    strange = thought("\N{SNOWMAN}" * 80, "\0\ud7ff\U0010ffff", tokens=100_000, seconds=-0.0)
    served = serve()
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(1))
        client.set_version(1)
        group = client.lease("a", 0, GroupPlan(5)).group_id
        for result in sent:
            client.put(group, "a", result)
            client.put(group, "a", strange)
        replies = [*client.draw(1, 1).groups, *client.get([group])]
    assert served.stop() == 0
    store = Store(served.folder, read_only=True)
    replies.append(store_reads.group(store, group))
    store.close()
    wanted = {r.slot: codec.encode(r) for r in sent}
    for reply in replies:
        assert {r.slot: codec.encode(r) for r in reply.results} == wanted
        assert [codec.encode(r) for r in reply.reflections] == [codec.encode(strange)]
        (longest,) = (t for t in reply.trajectories if len(t.token_ids) == LONGEST)
        assert longest.logprobs.tobytes() == sent[1].trajectory.logprobs.tobytes()
