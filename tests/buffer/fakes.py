"""Results, a desk (the service without sockets, with a clock of its own) and real services."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from buffer import cli
from buffer.client.call_results import Call
from buffer.client.calls import Calls
from buffer.groups import draws, insertion, learner_version, leases, progress, results, retention
from buffer.groups.tasks import add_tasks
from buffer.groups.unit_of_work import UnitOfWork
from buffer.indexes.index import Index
from buffer.server.service import rules_of
from buffer.storage.store import Store
from buffer.wire import operations
from r3l import codec
from r3l.records import (
    GroupPlan,
    Origin,
    ReflectionRecord,
    Shown,
    SlotResult,
    Trajectory,
    done,
)
from r3l.run.config import RunConfig
from tests.forks import Forked


def finished(slot=0, of=-1, *, version=0, reward=0.0, length=8, **more) -> SlotResult:
    """A slot with an attempt of one step; `more`: fields of its trajectory."""
    mask = np.zeros(length, dtype=np.bool_)
    mask[2:] = True
    trajectory = Trajectory(
        slot=slot,
        token_ids=np.arange(length, dtype=np.int32),
        logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
        step_spans=np.array([[2, length]], dtype=np.int32),
        step_versions=np.array([version], dtype=np.int32),
        step_newest_versions=np.array([version], dtype=np.int32),
        step_seconds=np.zeros(1, dtype=np.float32),
        reward=reward,
        system="",
        observations=("before", "after"),
        actions=("act",),
        of=of,
        **more,
    )
    return done(trajectory)


def thought(name="reflect-0", text="{}", *, of=0, version=0, tokens=3, **more) -> ReflectionRecord:
    """A reflection of `tokens` tokens, after a question of two; `more`: other fields of it."""
    logprobs = np.array([0, 0, *[-0.5] * tokens], np.float32)
    ids = np.arange(100, 102 + tokens, dtype=np.int32)
    return ReflectionRecord(name, text, ids, logprobs, 2, of, version=version, **more)


class _Unsent(Calls):
    """The operations as the calls that they would send."""

    def _ask(self, call: Call):
        return call


calls = _Unsent()
ONE = GroupPlan(1)


class Desk:
    """The operations of the service without its sockets; `now` is its clock."""

    def __init__(self, folder, **settings):
        self.folder, self.now, self.rids = folder, 1000.0, 0
        self.settings = {"groups_per_step": 2, "seed": 0, "lease_s": 10.0, "max_staleness": 1}
        self.configure(**settings)
        self.open()

    def configure(self, **settings):
        """Change `groups_per_step`, `seed`, `algorithm` and settings of the section `buffer`."""
        self.settings |= settings
        buffer = dict(self.settings)
        learner = {"groups_per_step": buffer.pop("groups_per_step")}
        algorithm = buffer.pop("algorithm", {"name": "r3l"})
        self.config = RunConfig(
            seed=buffer.pop("seed"), learner=learner, algorithm=algorithm, buffer=buffer
        )
        self.rules = rules_of(self.config)

    def open(self):
        self.store = Store(self.folder, map_gib=0.25)
        self.index = Index.load(self.store, self.config.buffer)

    def reopen(self):
        self.store.close()
        self.open()

    def do(self, operation, *arguments, **more):
        with self.store.write() as txn:
            work = UnitOfWork(txn, self.index, self.rules, self.now, more.pop("full", ""))
            result = operation(work, *arguments)
            work.finish()
        return result

    def add(self, tasks, purpose="train", tag="", min_version=0):
        return self.do(
            add_tasks, operations.AddTasks(tuple(tasks), purpose, tag, min_version)
        ).count

    def lease(self, actor="a", version=0, plan=ONE, rid=None):
        """`plan` None: the algorithm plans the group."""
        self.rids += 1
        args = operations.AcquireLease(actor, version, plan, {})
        return self.do(leases.lease, args, rid or f"r{self.rids}")

    def put(self, group_id, given, actor="a", fingerprint=None, **more):
        call = calls.put(group_id, actor, given, fingerprint)
        return self.do(results.put, call.arguments, **more)

    def put_partial(self, group_id, result, actor="a", since=None, serial=0, **more):
        """`since`: the progress, as a result, that the service has."""
        known = None if since is None else codec.encode(since)
        call = calls.put_partial(group_id, actor, result, since=known, serial=serial)
        return self.do(progress.put_partial, call.arguments, **more).count

    def resolve(self, group_id, slot, cause="", actor="a", of=-1):
        status = "failed" if cause else "skipped"
        return self.put(group_id, SlotResult(slot, status, cause=cause, of=of), actor)

    def renew(self, group_ids, actor="a"):
        return self.do(leases.renew, operations.Renew(tuple(group_ids), actor, {})).group_ids

    def release(self, group_ids, actor="a"):
        return self.do(leases.release, operations.Release(tuple(group_ids), actor)).group_ids

    def draw(self, count=2, version=0, consumer="learner", rid=None):
        self.rids += 1
        args = operations.DrawGroups(count, version, consumer)
        return self.do(draws.draw, args, rid or f"r{self.rids}")

    def shortage(self, count=2, version=0, consumer="learner"):
        args = operations.DrawGroups(count, version, consumer)
        assert self.do(draws.draw, args, "unused") is None
        return self.do(draws.shortage, args)

    def commit(self, draw_id, step, version=None, attempts=()):
        args = operations.Commit(draw_id, step, step if version is None else version, attempts)
        return self.do(draws.commit, args).count

    def release_draws(self, consumer="learner"):
        return self.do(draws.release_draws, operations.ReleaseDraws(consumer)).count

    def set_version(self, version):
        return self.do(learner_version.set_version, operations.SetVersion(version)).count

    def discard(self, draw_id, cause):
        return self.do(draws.discard, operations.Discard(draw_id, cause)).count

    def insert(self, task, attempts, source="people", **more):
        request = calls.insert(task, attempts, source=source, **more).arguments
        return self.do(insertion.insert, request).group_ids[0]

    def update_priorities(self, priorities):
        args = operations.UpdatePriorities(priorities)
        return self.do(draws.update_priorities, args).count

    def evict(self, limits):
        return self.do(lambda work: retention.evict(work, limits))

    def row(self, group_id):
        with self.store.read() as txn:
            return txn.row(group_id)

    def complete(self, version=0, actor="a", rewards=(0.0,)):
        """One whole group, as an actor would make it."""
        lease = self.lease(actor, version, GroupPlan(len(rewards)))
        attempts = [
            finished(slot, version=version, reward=reward) for slot, reward in enumerate(rewards)
        ]
        self.put(lease.group_id, attempts, actor)
        return lease.group_id


class Served:
    """A real `r3l-buffer serve` process."""

    def __init__(self, folder, bind="tcp://127.0.0.1:0", *options, change="", env=None, anew=False):
        """`options`: of the command, or of the configuration; `change`: Python to be run first, for
        mutants; `env`: more environment variables; `anew`: with a command line that names it."""
        self.folder = folder
        arguments = ["serve", "--store", str(folder), "buffer.map_gib=1"]
        arguments += ["--bind", bind, *map(str, options)]
        with open(f"{folder}.log", "ab") as log:
            if change or env or anew:
                program = ["-c", f"{change}\nfrom buffer.cli import main\nmain()"]
                command = [sys.executable, *(program if change else ["-m", "buffer.cli"])]
                self.process = subprocess.Popen(
                    [*command, *arguments],
                    env=os.environ | (env or {}),
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
                self.stdout = self.process.stdout
            else:
                out, given = os.pipe()
                self.stdout = open(out, encoding="utf-8")  # noqa: SIM115 - as long as it is served
                self.process = Forked(
                    "buffer.cli",
                    arguments,
                    imported=("buffer.cli",),
                    stdout=given,
                    stderr=log.fileno(),
                )
                os.close(given)
        line = self.stdout.readline()
        assert line.startswith("r3l-buffer ready "), Path(f"{folder}.log").read_text()
        self.endpoint = line.split()[-1]

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=120)


def until(happened, seconds=120):
    """Wait until something has happened."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def _trajectory(steps=2, tokens=9, **more):
    spans = np.array([[3 * k, 3 * k + 2] for k in range(steps)], dtype=np.int32)
    length = max(tokens, 3 * steps)
    return Trajectory(
        **{
            "slot": 0,
            "token_ids": np.arange(length, dtype=np.int32),
            "logprobs": np.full(length, -0.5, dtype=np.float32),
            "step_spans": spans,
            "step_versions": np.arange(5, 5 + steps, dtype=np.int32),
            "step_newest_versions": np.arange(6, 6 + steps, dtype=np.int32),
            "step_seconds": np.zeros(steps, dtype=np.float32),
            "reward": 0.5,
            "system": "s",
            "observations": ("o",) * (steps + 1),
            "actions": ("a",) * steps,
        }
        | more
    )


def full_result(**more) -> SlotResult:
    """A result whose attempt has every field; `more`: those to change."""
    shown = Shown(np.arange(3, dtype=np.int32), 1, 2)
    fields = {"pivot": 1, "origin": Origin("g1", 2, 1), "shown": shown, "source": "a file"}
    return done(_trajectory(**fields | {"reflection": "reflect-0"} | more))


def refused(arguments, rule, capsys):
    """`r3l-buffer` ends with exit code 2 and one line of its own."""
    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(sys, "argv", ["r3l-buffer", *arguments])
        cli.main()
    said = capsys.readouterr()
    [line] = said.err.splitlines()
    assert ended.value.code == 2 and not said.out, said
    assert line.startswith("r3l-buffer: ") and rule in line
