"""The commands that read, check, copy, export, import and evict from a store."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from buffer import AsyncBufferClient, BufferClient, cli
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from r3l.records import GroupPlan, ReflectionRecord, SlotResult
from tests.buffer.fakes import refused


def test_the_commands_export_and_import(filled, tmp_path):
    filled.store.copy(tmp_path / "snapshot")

    def run(*arguments):
        result = CliRunner().invoke(cli.commands, list(map(str, arguments)), catch_exceptions=False)
        assert result.exit_code == 0
        return json.loads(result.output)

    rows = run("export", "--store", tmp_path / "snapshot", tmp_path / "out")
    assert rows["groups"] == 4
    new = ("--store", tmp_path / "new")
    assert run("import", *new, tmp_path / "out") == rows


def test_the_commands_read_a_copy(trained, tmp_path):
    trained.store.copy(tmp_path / "snapshot")
    at = ["--store", str(tmp_path / "snapshot")]

    def run(*arguments):
        result = CliRunner().invoke(cli.commands, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    assert "4 groups" in run("ls", *at) and "no reward" in run("query", *at, "reward == None")
    assert "2 groups" in run("query", *at, "state == 'trained' and reward == 1")
    assert "base 0: done" in run("show", *at, "g0000000001")
    assert json.loads(run("replay", *at, "1").splitlines()[0])["group_id"] == "g0000000001"
    assert run("verify", *at) == "clean\n"
    assert json.loads(run("stats", *at))["groups"]["train/trained"] == 2
    assert json.loads(run("stats", *at))["slot_drops"] == {"base/env": 1}
    run("compact", *at, str(tmp_path / "smaller"))
    copied = Store(tmp_path / "smaller", read_only=True)
    assert verify(copied) == []
    copied.close()


def test_a_group_is_shown_with_what_a_retry_corrects_from_which_step_and_with_what_advice(
    desk, tasks, done
):
    desk.add(tasks(1))
    thought = {
        "trajectory_summary": "tried the blue key",
        "root_cause_analysis": "the door was red",
        "trajectory_outcome": "failure",
        "improvement_suggestion": "take the red key",
        "retry_from_step": 0,
    }
    record = ReflectionRecord(json.dumps(thought), outcome="failure", pivot=0)
    retry = done("distilled", 0, reward=1.0)
    retry = replace(
        retry, reflection=record, trajectory=replace(retry.trajectory, parent=0, pivot=0)
    )
    unused = ReflectionRecord("I was wrong", "not_json")
    other = SlotResult("distilled", 1, "not_triggered", reflection=unused)
    group = desk.lease(plan=GroupPlan(2, 2)).group_id
    desk.put(group, [done("base", 0), done("base", 1), retry, other])
    desk.store.copy(desk.folder.parent / "copy")
    for name in (group, "1", "g1"):
        arguments = ["show", "--store", str(desk.folder.parent / "copy"), name]
        shown = CliRunner().invoke(cli.commands, arguments, catch_exceptions=False).output
        lines = [line.strip() for line in shown.splitlines()]
        titles = [line for line in lines if line.startswith("──")]
        assert titles == [
            "── base 0: done",
            "── retry of base 0 from step 0: done",
            "── base 1: done",
            "── retry of base 1: not_triggered",
        ]
        assert "trajectory_summary: tried the blue key" in lines
        assert "root_cause_analysis: the door was red" in lines
        assert "improvement_suggestion: take the red key" in lines
        assert "reflection, not usable (not_json): I was wrong" in lines


OPTIONS = ("learner.groups_per_step=4", "buffer.max_staleness=500")


class Work:
    """Puts and commits without end; `acked`: groups that were acknowledged."""

    def __init__(self, endpoint, done):
        self.endpoint, self.done = endpoint, done
        self.over, self.acked, self.errors = threading.Event(), [], []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            with BufferClient(self.endpoint, timeout_s=60) as client:
                while not self.over.is_set():
                    for _ in range(4):
                        group = client.lease("a", 0, GroupPlan(1)).group_id
                        client.put(group, "a", self.done(length=3000))
                        self.acked.append(group)
                    draw = client.draw(4, 0)
                    client.commit(draw.draw_id, len(self.acked) // 4, 0)
        except Exception as error:
            self.errors.append(error)

    def wait_for(self, groups):
        while len(self.acked) < groups and not self.errors:
            self.over.wait(0.01)


def _compact(folder, target):
    command = [sys.executable, "-m", "buffer.cli", "compact", "--store", str(folder), str(target)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


@pytest.mark.system
def test_a_copy_made_under_load_is_one_moment_with_every_acknowledged_result(
    serve, tasks, done, tmp_path
):
    served = serve("tcp://127.0.0.1:0", *OPTIONS)
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(9))
    work = Work(served.endpoint, done)
    for number in range(3):
        work.wait_for(8 * (number + 1))
        before = list(work.acked)
        _compact(served.folder, tmp_path / f"copy-{number}")
        copy = Store(tmp_path / f"copy-{number}", read_only=True)
        rows = list(store_reads.rows(copy))
        assert [row["group"] for row in rows] == [f"g{i + 1:010d}" for i in range(len(rows))]
        assert len(rows) >= len(before) and verify(copy) == []
        assert copy.disk_bytes <= 1.3 * sum(row["bytes"] for row in rows) + (1 << 20)
        copy.close()
    work.over.set()
    work.thread.join()
    assert not work.errors


def test_a_store_of_another_schema_is_refused_in_one_line(tmp_path, capsys):
    folder = tmp_path / "store"
    store = Store(folder, map_gib=0.1)
    with store.write() as txn:
        txn.put_schema(99)
    store.close()
    refused(["ls", "--store", str(folder)], "has schema 99, but this r3l reads", capsys)


def _evict(*arguments):
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
        said = _evict("--endpoint", served.endpoint, "--dry-run", *limits)
        assert _evict("--store", served.folder, "--dry-run", *limits) == said
        did = _evict("--endpoint", served.endpoint, *limits)
        assert said["groups"] == 110 and did | {"dry_run": True} == said
        stats = client.stats()
        assert (stats.made, stats.evicted, stats.trained) == (160, 110, 160)
        assert stats.train["trained"] == 50
    assert served.stop() == 0
    did = _evict("--store", served.folder, "groups=10", "grace_s=0")
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
