"""The command `r3l-buffer evict`, on a store and through its service."""

import asyncio
import json

from click.testing import CliRunner

from buffer import AsyncBufferClient, BufferClient, cli
from buffer.storage.store import Store
from r3l.records import GroupPlan
from tests.buffer.fakes import refused


def _command(*arguments):
    result = CliRunner().invoke(cli.commands, ["evict", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


async def _fill(endpoint, done, count, version):
    """So many complete groups, made all at once."""

    async def one(client):
        lease = await client.lease("a", version, GroupPlan(1))
        await client.put(lease.group_id, "a", done(version=version))

    async with AsyncBufferClient(endpoint, timeout_s=60) as client:
        await asyncio.gather(*(one(client) for _ in range(count)))


def test_the_command_evicts_from_a_store_and_through_its_service(serve, tasks, done):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=80")
    limits = ("groups=50", "grace_s=0")
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(200))
        for step in (1, 2):
            asyncio.run(_fill(served.endpoint, done, 80, step - 1))
            client.commit(client.draw(80, step - 1).draw_id, step, step)
        said = _command("--endpoint", served.endpoint, "--dry-run", *limits)
        assert _command("--store", served.folder, "--dry-run", *limits) == said
        did = _command("--endpoint", served.endpoint, *limits)
        assert said["groups"] == 110 and did | {"dry_run": True} == said
        stats = client.stats()
        assert (stats.made, stats.evicted, stats.trained) == (160, 110, 160)
        assert stats.train["trained"] == 50
    assert served.stop() == 0
    did = _command("--store", served.folder, "groups=10", "grace_s=0")
    assert did["groups"] == 40


def test_limits_of_an_eviction_are_refused_in_one_line(tmp_path, capsys):
    Store(tmp_path / "store", map_gib=0.1).close()
    for limits, rule in (
        (["groups=-1"], "groups: must be at least 0"),
        (["bytes=9"], "bytes: unknown; this section knows groups, gib, hours, versions, grace_s"),
        (["grace_s=9"], "give a limit: groups=, gib=, hours= or versions="),
        ([], "LIMITS..."),
    ):
        refused(["evict", "--store", str(tmp_path / "store"), *limits], rule, capsys)
