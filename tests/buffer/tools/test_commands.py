"""The commands that read, check, copy and export a store."""

import json
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

from buffer import BufferClient, cli
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.commands import Pace
from buffer.tools.verify import verify
from r3l import codec
from r3l.records import GroupPlan, SlotResult
from tests.buffer.fakes import refused, thought


def test_the_commands_read_a_copy(trained, tmp_path):
    trained.store.copy(tmp_path / "snapshot")
    at = [str(tmp_path / "snapshot")]

    def run(*arguments):
        result = CliRunner().invoke(cli.main, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    assert "4 groups" in run("ls", *at) and "no reward" in run("ls", *at, "done == 0")
    assert "2 groups" in run("ls", *at, "state == 'trained' and reward == 1")
    assert "attempt 0: done" in run("show", *at, "g0000000001")
    assert json.loads(run("replay", *at, "1").splitlines()[0])["group_id"] == "g0000000001"
    assert CliRunner().invoke(cli.main, ["verify", *at]).stdout == "clean\n"
    run("compact", *at, str(tmp_path / "smaller"))
    copied = Store(tmp_path / "smaller", read_only=True)
    assert verify(copied) == []
    copied.close()


def test_a_long_look_says_now_and_then_how_far_it_is_and_how_fast(capsys):
    pace = Pace("checked", 100.0)
    for done in range(1, 2001):
        pace.tell(done, 100_000, 100.0 + done / 200)
    assert capsys.readouterr().err.splitlines() == [
        "checked 1,000 of 100,000 groups, 200 a second, 495 s left",
        "checked 2,000 of 100,000 groups, 200 a second, 490 s left",
    ]


def test_a_group_is_shown_with_what_a_retry_corrects_from_which_step_and_with_what_advice(
    desk, tasks, done
):
    desk.add(tasks(1))
    advice = {
        "trajectory_summary": "tried the blue key",
        "root_cause_analysis": "the door was red",
        "trajectory_outcome": "failure",
        "improvement_suggestion": "take the red key",
        "retry_from_step": 0,
    }
    given = thought("reflect-0", json.dumps(advice), outcome="failure", pivot=0)
    retry = done(2, of=0, reward=1.0, pivot=0, reflection="reflect-0")
    unused = thought("reflect-1", "I was wrong", of=1, cause="not_json")
    other = SlotResult(3, "skipped", cause="not_triggered", of=1)
    group = desk.lease(plan=GroupPlan(4)).group_id
    desk.put(group, [done(0), done(1), retry, other, given, unused])
    desk.store.copy(desk.folder.parent / "copy")
    for name in (group, "1", "g1"):
        arguments = ["show", str(desk.folder.parent / "copy"), name]
        shown = CliRunner().invoke(cli.main, arguments, catch_exceptions=False).output
        lines = [line.strip() for line in shown.splitlines()]
        titles = [line for line in lines if line.startswith("──")]
        assert titles == [
            "── attempt 0: done",
            "── attempt 2, retry of 0 from step 0: done",
            "── attempt 1: done",
            "── attempt 3, retry of 1: skipped not_triggered",
        ]
        assert "trajectory_summary: tried the blue key" in lines
        assert "root_cause_analysis: the door was red" in lines
        assert "improvement_suggestion: take the red key" in lines
        assert "reflection reflect-1, not usable (not_json): I was wrong" in lines


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
    command = [sys.executable, "-m", "buffer.cli", "compact", str(folder), str(target)]
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
        txn.put("sys", b"schema", codec.pack({"schema": 99}))
    store.close()
    refused(["ls", str(folder)], "has schema 99, but this r3l reads", capsys)
