"""An actor that joins a running job, loses its engine, and leaves: nothing accepted is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.torch import load_file

from buffer import BufferClient, Lease
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from buffer.wire.curve_keys import generate
from envs.registry import task_source
from launch.checks.presets import DEMO
from learner.publishing.publisher import WeightPublisher
from r3l.models.model_path import builtin_policy
from r3l.notices import NOTICE_LINE
from r3l.records import Group
from r3l.run import config as configuration
from tests.forks import Forked
from tests.processes import command_line, lives

pytestmark = pytest.mark.system
PATIENCE = 300.0  # ends a hang; it asserts no speed
ROOT = Path(__file__).parent.parent.parent
Process = subprocess.Popen[str] | Forked
GUESSING = ("tests.system.simulated_actor", "vllm.entrypoints.openai.chat_completion.protocol")
"""What an actor imports whose engine guesses. The gateway reads agents' calls with vLLM."""


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something to happen."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE, f"not within {PATIENCE} s: {what}"
        time.sleep(0.1)


class Job:
    """A buffer with tasks, a publisher with weights, all behind keys; actors join it."""

    def __init__(self, folder: Path, *settings: str, lease_s: int = 300) -> None:
        self.folder = folder
        service, self.keys, self.learner_keys = generate(folder / "keys")
        self.processes: list[Process] = []
        self.log = folder / "actor.log"
        demo = configuration.load(DEMO, [f"model={builtin_policy()}", *settings])
        self.config = folder / "config.yaml"
        self.config.write_text(configuration.dump(demo))
        store = ["--store", str(folder / "store"), "--bind", "tcp://127.0.0.1:0"]
        limits = [f"buffer.lease_s={lease_s}", "buffer.max_staleness=1000", "--keys", str(service)]
        rules = ["--config", str(self.config)]  # the algorithm plans the groups
        self.served = self.start(
            "buffer.cli", "serve", *rules, *store, *limits, stdout=subprocess.PIPE
        )
        assert self.served.stdout is not None
        self.buffer = self.served.stdout.readline().split()[-1]
        self.client = BufferClient(self.buffer, name="test", keys=self.learner_keys)
        source = task_source(demo.env.name, **demo.env.options)
        self.client.add_tasks(source.tasks("train", 256, seed=0))
        self.client.set_version(3)
        self.weights = sorted(load_file(builtin_policy() / "model.safetensors").items())
        self.publisher = WeightPublisher("tcp://127.0.0.1:0", keys=service)
        self.publisher.publish(3, self.weights)

    def start(self, module: str, *arguments: str, stdout: int) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=stdout,
            stderr=subprocess.STDOUT if stdout != subprocess.PIPE else None,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
        )
        self.processes.append(process)
        return process

    def join(self, name: str, module: str = "actors.cli") -> Process:
        arguments = ["--config", str(self.config), "--name", name, "--keys", str(self.keys)]
        arguments += ["--buffer", self.buffer, "--weights", self.publisher.endpoint]
        with self.log.open("a") as log:
            out = log.fileno()
            if not module.startswith("tests.system."):
                return self.start(module, *arguments, stdout=out)
            guessing = Forked(module, arguments, imported=GUESSING, stdout=out, stderr=out)
        self.processes.append(guessing)
        return guessing

    def puts(self) -> int:
        return self.client.stats().puts

    def report(self, name: str) -> dict[str, float]:
        """What the actor that joined under that name tells of itself."""
        told = self.client.stats().actors
        return next((told[known] for known in told if known.startswith(f"{name}.")), {})

    def abandoned(self) -> Lease:
        """What the buffer gives to another actor: a group somebody gave back, if there is one."""
        lease = self.client.lease("helper", 3)
        assert isinstance(lease, Lease)
        return lease

    def kill(self, *actors: Process) -> None:
        for actor in actors:
            actor.kill()
            actor.wait()

    def stored(self) -> list[Group]:
        """Stops the buffer; its groups, whose store is whole."""
        self.served.terminate()
        assert self.served.wait(timeout=PATIENCE) == 0
        with Store(self.folder / "store", read_only=True) as store:
            assert verify(store) == []
            return [store_reads.group(store, row["group"]) for row in store_reads.rows(store)]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.client.close()
        self.publisher.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


def engines_of(process: Process) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [p for p in children if "EngineCore" in " ".join(command_line(p))]


def test_an_actor_survives_its_engine_and_releases_its_groups(job: Job) -> None:
    actor = job.join("one")
    until(lambda: job.report("one").get("weight_version") == 3, "the actor has the weights")
    before = job.puts()
    until(lambda: job.puts() > before + 10, f"results; {job.log.read_text()[-2000:]}")

    (engine,) = engines_of(actor)
    leases = job.client.stats().leases
    engine.kill()
    until(lambda: "engine failure 1" in job.log.read_text(), "the dead engine is noticed")
    until(lambda: bool(job.abandoned().accepted), "its groups are given back with results")
    assert job.client.stats().leases_expired == 0 and leases > 0
    died_with = job.puts()
    until(lambda: job.puts() > died_with + 10, "a new engine goes on")
    # The actor's metrics travel with its heartbeat, which may come after its results.
    failed = {"engine_failures": 1.0, "weight_version": 3.0}
    until(lambda: failed.items() <= job.report("one").items(), "the next heartbeat says so")

    # Groups under way now are given back in the order they were begun.
    while job.abandoned().accepted:
        pass
    actor.send_signal(signal.SIGTERM)
    assert actor.wait(timeout=PATIENCE) == 0, job.log.read_text()[-2000:]
    until(lambda: bool(job.abandoned().accepted), "what it had begun is given back at once")
    assert job.client.stats().leases_expired == 0


def test_a_sick_engine_is_replaced_its_results_stay_and_a_killed_actor_takes_the_new_one_along(
    job: Job,
) -> None:
    actor = job.join("one", "tests.actors.sick_actor")
    until(lambda: "engine failure 1" in job.log.read_text(), "the sick engine is noticed")
    notices = [line for line in job.log.read_text().splitlines() if NOTICE_LINE in line]
    (said,) = [line for line in notices if "engine failure 1" in line]
    assert "log-probabilities are NaN or infinite" in said
    told = {"engines_sick_logprobs_not_finite": 1.0}
    until(lambda: told.items() <= job.report("one").items(), "the last heartbeat says so")
    before, complete = job.puts(), {g.group_id for g in job.client.query(state="complete")}
    assert before > 0 and job.client.stats().leases_expired == 0

    until(lambda: job.puts() > before + 10, "a sound engine goes on")
    kept = list(job.client.query(state="complete"))
    assert complete <= {group.group_id for group in kept}
    assert all(np.isfinite(t.logprobs).all() for group in kept for t in group.trajectories)
    assert actor.poll() is None and "engine failure 2" not in job.log.read_text()

    (engine,) = engines_of(actor)
    actor.kill()
    actor.wait()
    until(lambda: not lives(engine), "the engine of a killed actor ends")
