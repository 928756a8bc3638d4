"""Builds the command lines and environment variables of a plan's processes."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from launch.backends.processes import import_path
from launch.topology.placement import Plan
from r3l.files.run_folder import RunFolder
from r3l.process.endpoints import reached, with_port
from r3l.process.memory import STEADY_MEMORY


class ProcessCommands:
    """Builds the command line and environment variables of each process in a plan.

    `buffer_endpoint`, `weights_endpoint`: the services' addresses. Inside `ports` they are the
    real ones, which a restarted service reuses.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.buffer_endpoint, self.weights_endpoint = plan.buffer_bind, plan.weights_bind
        self.free_port: Callable[[], int | str] = free_port  # of DeepSpeed's ranks

    @contextmanager
    def ports(self) -> Iterator[None]:
        """Chooses the services' ports if the plan does not. So a process need not wait until the
        services listen before it starts."""
        with with_port(self.buffer_endpoint) as buffer, with_port(self.weights_endpoint) as weights:
            self.buffer_endpoint, self.weights_endpoint = buffer, weights
            yield

    @property
    def config_file(self) -> str:
        """The settings file for processes that start now."""
        return str(RunFolder(self.plan.run).config_file)

    def buffer(self) -> list[str]:
        """The command of the buffer service."""
        return [
            *_python("buffer.cli"), "serve", "--config", self.config_file,
            "--store", str(self.plan.run / "buffer"), "--bind", self.buffer_endpoint,
            *_keys(self.plan, "service.json"),
        ]  # fmt: skip

    def learner(self) -> list[str]:
        """The learner's command: its only rank, or DeepSpeed's launcher, which starts all ranks."""
        rank = self.rank()
        if self.plan.topology.count == 1:
            return rank
        return [
            *_python("deepspeed.launcher.runner"), *self._ranks(),
            "--master_port", str(self.free_port()), "--no_local_rank", "--module",
            *rank[rank.index("learner.cli") :],
        ]  # fmt: skip

    def rank(self) -> list[str]:
        """The command of one learner rank; environment variables hold its number."""
        return [
            *_python("learner.cli"),
            "train", "--config", self.config_file, "--run", str(self.plan.run),
            "--buffer", reached(self.buffer_endpoint), "--weights", self.weights_endpoint,
            *_keys(self.plan, ""),
        ]  # fmt: skip

    def _ranks(self) -> list[str]:
        """The DeepSpeed launcher's arguments that place the ranks."""
        ranks, hosts = self.plan.topology.ranks, self.plan.hosts
        if hosts is None or len(ranks) == 1:
            gpus = ranks[0].gpus
            if gpus and all(gpu.isdecimal() for gpu in gpus):
                # A count would start at GPU 0 and ignore CUDA_VISIBLE_DEVICES.
                return ["--include", f"localhost:{','.join(gpus)}"]
            return ["--num_gpus", str(ranks[0].count)]
        where = ["--hostfile", str(hosts.path), "--master_addr", hosts.address]
        if {part.machine: part.count for part in ranks} != hosts.slots:
            slots = {part.machine: part.gpus or _first(part.count) for part in ranks}
            parts = [f"{machine}:{','.join(each)}" for machine, each in slots.items()]
            where += ["--include", "@".join(parts)]
        return where

    def actor(self, index: int) -> list[str]:
        """The command of one actor; on a remote machine it runs under ssh and exits with it."""
        place = self.plan.topology.actors[index]
        away = place.machine in self.plan.topology.elsewhere
        machine = self.plan.hosts.reached if away and self.plan.hosts is not None else "127.0.0.1"
        command = self.actor_reaching(index, machine)
        return (
            self._through_ssh(place.machine, command, self._place_env(index)) if away else command
        )

    def actor_reaching(self, index: int, machine: str) -> list[str]:
        """The command of one actor on its own machine, with the services on `machine`."""
        share = self.plan.topology.actors[index].share
        return [
            *_python("actors.cli"), "--config", self.config_file,
            "--buffer", reached(self.buffer_endpoint, machine),
            "--weights", reached(self.weights_endpoint, machine),
            "--name", f"actor-{index}", *_keys(self.plan, "client.json"),
            *([] if share is None else [f"actor.engine.gpu_memory_utilization={share}"]),
        ]  # fmt: skip

    def _through_ssh(self, machine: str, command: list[str], env: dict[str, str]) -> list[str]:
        """Wraps `command` so that it runs in this folder on a remote machine.

        With a terminal (-tt) the remote process gets SIGHUP when ssh ends or is killed.
        """
        own = {**STEADY_MEMORY, "PYTHONUNBUFFERED": "1", "PYTHONPATH": import_path(), **env}
        words = ["exec", "env", *(f"{key}={value}" for key, value in own.items()), *command]
        line = f"cd {shlex.quote(os.getcwd())} && {shlex.join(words)}"
        alive = ["-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"]
        return ["ssh", "-tt", "-o", "BatchMode=yes", *alive, machine, line]

    def learner_env(self) -> dict[str, str]:
        """The learner's environment variables."""
        topology = self.plan.topology
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if topology.device == "cpu" else {}
        # DeepSpeed's launcher starts the ranks without -P.
        ranks = {"PYTHONSAFEPATH": "1"} if topology.count > 1 else {}
        return _cpu_env(topology.threads) | hidden | ranks

    def actor_env(self, index: int) -> dict[str, str]:
        """The environment variables of an actor or, on a remote machine, of its ssh."""
        elsewhere = self.plan.topology.actors[index].machine in self.plan.topology.elsewhere
        return {} if elsewhere else self._place_env(index)

    def _place_env(self, index: int) -> dict[str, str]:
        place = self.plan.topology.actors[index]
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus)} if place.gpus else {}
        return _cpu_env(place.threads) | gpus


def _first(count: int) -> tuple[str, ...]:
    return tuple(str(slot) for slot in range(count))


def _cpu_env(threads: int | None) -> dict[str, str]:
    """OpenMP settings that let waiting threads sleep; {} if `threads` is None."""
    if threads is None:
        return {}
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


def _keys(plan: Plan, file: str) -> list[str]:
    """The option that names a key file or the key folder; [] if the run has no keys."""
    return [] if plan.keys is None else ["--keys", str(plan.keys / file)]


def _python(module: str) -> list[str]:
    # -P: no module of the user's folder is imported in place of one of r3l's.
    return [sys.executable, "-P", "-m", module]


def free_port() -> int:
    """Finds a free TCP port for DeepSpeed's `--master_port`.

    It must be chosen here because every rank receives the port before rank 0 listens on it. It is
    below the system's range for outgoing connections, so no such connection takes it first.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
