"""The service itself: groups put whole, drawn, and drawn and read."""

import asyncio
from collections.abc import Iterator

from benchmarks.buffer.clock import (
    BATCH,
    IN_FLIGHT,
    LEASES,
    SLOTS,
    Run,
    Speed,
    group_blob,
    group_results,
)
from benchmarks.buffer.service import Service
from buffer import AsyncBufferClient, Lease, Wait
from r3l.records import GroupPlan, Task


def r3l_service(run: Run) -> dict[str, Speed]:
    """Leased groups put whole by 16 coroutines of one client, drawn by 16, and drawn again and
    read: every array of every group made and checked."""
    speeds: dict[str, Speed] = {}
    options = (f"learner.groups_per_step={run.groups}", "buffer.max_staleness=1")
    with Service(run.folder / "store", *options) as service:
        service.client.add_tasks([Task(f"t{i}", "bench", i) for i in range(100)])
        results, pid = group_results(), service.process.pid

        async def put_and_draw() -> None:
            async with AsyncBufferClient(service.endpoint, timeout_s=60) as client:
                plan = GroupPlan(SLOTS)
                leases: list[Lease | Wait] = []
                for _ in range(0, run.groups, LEASES):
                    leases += await asyncio.gather(
                        *(client.lease("a", 0, plan) for _ in range(LEASES))
                    )
                ids = iter([lease.group_id for lease in leases if isinstance(lease, Lease)])

                async def put_some() -> None:
                    for group_id in ids:
                        assert (await client.put(group_id, "a", results)).complete

                with run.clock("put", speeds, len(group_blob()), pid):
                    await asyncio.gather(*(put_some() for _ in range(IN_FLIGHT)))

                async def draw_some(batches: Iterator[int], read: bool) -> None:
                    for _ in batches:
                        draw = await client.draw(BATCH, 0)
                        assert draw is not None and len(draw.groups) == BATCH
                        assert not read or all(len(g.results) == SLOTS for g in draw.groups)

                for what in ("draw", "draw, read"):
                    batches = iter(range(run.groups // BATCH))
                    with run.clock(what, speeds, len(group_blob()), pid):
                        await asyncio.gather(
                            *(draw_some(batches, what != "draw") for _ in range(IN_FLIGHT))
                        )
                    await client.release_draws()

        asyncio.run(put_and_draw())
    return speeds
