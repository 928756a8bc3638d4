"""The command lines and environment variables of a plan's processes."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys

from launch.plan import Plan, actor_gpu, reached, visible_gpus
from launch.resume import config_file
from learner.run_files import LAUNCHER, LEARNER_LIVES


class ProcessCommands:
    """The command line and the environment of every process of one plan.

    `buffer_endpoint`, `weights_endpoint`: where the plan wants the services to listen, until they
    have started and said which port they took; a restarted one takes the same port again.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.buffer_endpoint, self.weights_endpoint = plan.buffer_bind, plan.weights_bind

    def buffer(self) -> list[str]:
        """The buffer service."""
        return [
            *_python("buffer.cli"), "serve", "--config", str(config_file(self.plan.run)),
            "--store", str(self.plan.run / "buffer"), "--bind", self.buffer_endpoint,
            "--connections", str(self.plan.connections),
            "--outlive", str(self.plan.run / LEARNER_LIVES), *_keys(self.plan, "service.json"),
        ]  # fmt: skip

    def learner(self) -> list[str]:
        """The learner: its only rank, or DeepSpeed's launcher that starts all ranks."""
        arguments = [
            "train", "--config", str(config_file(self.plan.run)), "--run", str(self.plan.run),
            "--buffer", reached(self.buffer_endpoint), "--weights", self.weights_endpoint,
            *_keys(self.plan, ""),
        ]  # fmt: skip
        if self.plan.learner_ranks == 1:
            return [*_python("learner.cli"), *arguments]
        where = ["--num_gpus", str(self.plan.learner_ranks)]
        gpus = visible_gpus()[: self.plan.learner_ranks]
        if self.plan.learner_device == "gpu" and gpus and all(gpu.isdecimal() for gpu in gpus):
            # A count would start at GPU 0 and ignore CUDA_VISIBLE_DEVICES.
            where = ["--include", f"localhost:{','.join(gpus)}"]
        if self.plan.hosts is not None and len(self.plan.hosts.slots) > 1:
            where = [
                "--hostfile",
                str(self.plan.hosts.path),
                "--master_addr",
                self.plan.hosts.address,
            ]
        return [
            *_python("deepspeed.launcher.runner"), *where,
            "--master_port", str(free_port()), "--no_local_rank", "--module", "learner.cli",
            *arguments,
        ]  # fmt: skip

    def actor(self, index: int) -> list[str]:
        """One actor."""
        return [
            *_python("actors.cli"), "--config", str(config_file(self.plan.run)),
            "--buffer", reached(self.buffer_endpoint),
            "--weights", reached(self.weights_endpoint),
            "--name", f"actor-{index}", *_keys(self.plan, "client.json"),
        ]  # fmt: skip

    def learner_env(self) -> dict[str, str]:
        """Environment variables of the learner."""
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.plan.learner_device == "cpu" else {}
        # DeepSpeed's launcher starts the ranks without -P, and without a signal for its own death.
        ranks = {"PYTHONSAFEPATH": "1", LAUNCHER: str(os.getpid())}
        return _cpu_env(self.plan) | hidden | (ranks if self.plan.learner_ranks > 1 else {})

    def actor_env(self, index: int) -> dict[str, str]:
        """Environment variables of one actor."""
        learner_gpus = self.plan.learner_ranks if self.plan.learner_device == "gpu" else 0
        gpu = actor_gpu(index, visible_gpus(), learner_gpus)
        return _cpu_env(self.plan) if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}


def _cpu_env(plan: Plan) -> dict[str, str]:
    """Thread settings: the processes of a CPU run share the cores, and waiting threads must
    sleep."""
    if plan.learner_device == "gpu":
        return {}
    processes = plan.actors + plan.learner_ranks
    threads = max(1, (os.cpu_count() or 1) // processes)
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


def _keys(plan: Plan, file: str) -> list[str]:
    """The option that names a file of the run's keys, or their folder; nothing without keys."""
    return [] if plan.keys is None else ["--keys", str(plan.keys / file)]


def _python(module: str) -> list[str]:
    # -P: a module of the user's folder that has the name of one of ours is not imported.
    return [sys.executable, "-P", "-m", module]


def free_port() -> int:
    """A free TCP port for DeepSpeed's `--master_port`.

    It must be chosen here because every rank receives the port before rank 0 listens on it. It lies
    below the ports that the system gives to connections, so that none of these takes it first.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
