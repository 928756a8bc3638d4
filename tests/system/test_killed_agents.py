"""Agents, graders and actors are killed at random calls: what is stored is whole, every slot is
taken over, and no process or folder is left."""

import contextlib
import json
import os
import random
import time
from pathlib import Path

import psutil
import pytest

from buffer.storage.store import Store
from r3l.run.process.process_list import every_process
from r3l.views.tape import read_tape
from tests.processes import command_line, lives
from tests.system.test_actor import Job, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
AGENT = Path(__file__).parents[1] / "actors" / "agents" / "stdlib_agent.py"
HELPER = ["sleep", str(100_000_000 + os.getpid())]  # of this test alone
PROGRAM = f"""
import json, os, subprocess, sys, time
sys.path.insert(0, {str(AGENT.parent)!r})
from stdlib_agent import ask

task = json.loads(os.environ["R3L_TASK"])
helper = subprocess.Popen({HELPER})  # does not end by itself
messages = []
for n in range(task["calls"]):
    messages += [{{"role": "user", "content": f"heads or tails {{n}}"}}]
    messages.append(ask(messages))
"""
GRADER = """
import time

def grade(task, calls, workspace):
    time.sleep(0.3)
    assert len(calls) == task["calls"], calls
    return len(calls) / 10
"""
KILLS = 12
CAUSES = {"agent_exit", "grader_failed", "agent_no_calls"}


def processes(folder: Path, kind: str) -> list[psutil.Process]:
    """The run's processes of a kind. A grader is a fork of its starter."""
    found = []
    for process in every_process():
        line = " ".join(command_line(process))
        if kind == "agent" and f"{folder}/agent.py" in line and lives(process):
            found.append(process)
        if kind == "grader" and f"{folder}/grade.py" in line and lives(process):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
                parent = process.parent()
                if parent and f"{folder}/grade.py" in " ".join(command_line(parent)):
                    found.append(process)
    return found


def helpers() -> list[psutil.Process]:
    return [p for p in every_process() if command_line(p)[1:] == HELPER]


def job_of(folder: Path) -> Job:
    (folder / "agent.py").write_text(PROGRAM)
    (folder / "grade.py").write_text(GRADER)
    tasks = [{"id": n, "calls": 1 + n % 4, "split": "train"} for n in range(64)]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    options = {
        "command": f"python {folder}/agent.py",
        "tasks": f"{folder}/tasks.jsonl",
        "reward": f"{folder}/grade.py:grade",
    }
    return Job(
        folder,
        "env.name=agent",
        f"env.options={json.dumps(options)}",
        "algorithm={name: grpo, group_size: 2}",
        "actor.concurrent_requests=4",
        lease_s=4,
    )


def unfinished(folder: Path) -> set[str]:
    with Store(folder / "store", read_only=True) as store, store.read() as txn:
        return {row.group_id for row in txn.live() if row.unfinished}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_what_is_killed_at_random_calls_leaves_neither_process_nor_half_a_record(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    chance, killed = random.Random(seed), dict.fromkeys(("agent", "grader", "actor"), 0)
    job = job_of(tmp_path)
    try:
        names = ["actor-0", "actor-1"]
        actors = {name: job.join(name, "tests.system.simulated_actor") for name in names}
        until(
            lambda: (
                (job.puts() > 2 and all(map(job.report, names)))
                or actors["actor-0"].poll() is not None
            ),
            "the first results of both",
        )
        assert actors["actor-0"].poll() is None, job.log.read_text()[-2000:]
        while sum(killed.values()) < KILLS or not all(killed.values()):
            time.sleep(chance.uniform(0.1, 1.0))
            kind = chance.choice([*killed, "agent", "grader"])
            if kind == "actor" and all(map(job.report, actors)):  # one that starts plays nothing
                job.kill(actors.pop(chance.choice([*actors])))
                name = f"actor-{2 + killed['actor']}"
                actors[name] = job.join(name, "tests.system.simulated_actor")
                killed[kind] += 1
            elif found := processes(tmp_path, kind):
                with contextlib.suppress(psutil.NoSuchProcess):
                    chance.choice(found).kill()
                    killed[kind] += 1
        left = unfinished(tmp_path)
        until(lambda: not left & unfinished(tmp_path), "the groups of killed actors are completed")
        assert job.client.stats().leases_expired > 0
        job.kill(*actors.values())
        until(
            lambda: not (*processes(tmp_path, "agent"), *processes(tmp_path, "grader"), *helpers()),
            "no agent, grader or helper is left",
        )
        until(lambda: not [*temporary.glob("r3l-env-*")], "the folders of attempts are removed")
        groups = job.stored()
    finally:
        job.close()
    results = [result for group in groups for result in group.results]
    assert {result.cause for result in results if result.status == "failed"} <= CAUSES
    for group in groups:
        expected = json.loads(json.dumps(dict(group.task.options)))["task"]["calls"]
        for result in group.results:
            if played := result.trajectory:
                tape = read_tape(played.extra.tape)
                assert (played.reward, len(tape)) == (expected / 10, expected)
                assert played.num_steps == expected and all(call.reply for call in tape)
    assert len(results) > KILLS
