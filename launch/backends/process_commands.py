"""Builds the command lines and environment variables of a plan's processes."""

import base64
import json
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from launch.backends.processes import Command
from launch.topology.placement import Plan
from r3l.files.own_packages import module_command
from r3l.run.files.run_folder import RunFolder
from r3l.run.process.endpoints import reached, with_port
from r3l.run.process.steady_threads import STEADY_THREADS


class ProcessCommands:
    """Builds the command line and environment variables of each process in a plan.

    `buffer_endpoint`, `weights_endpoint`: the services' addresses. Within `with self.ports()`,
    their ports are fixed, so that a restarted service listens at the same port again.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.buffer_endpoint, self.weights_endpoint = plan.buffer_bind, plan.weights_bind
        self.free_port: Callable[[], int | str] = free_port  # for DeepSpeed's ranks
        self.services = "127.0.0.1"  # the services' machine, for an actor

    @contextmanager
    def ports(self) -> Iterator[None]:
        """Chooses the service ports that the plan leaves open, so that every process can start
        before the services listen."""
        with with_port(self.buffer_endpoint) as buffer, with_port(self.weights_endpoint) as weights:
            self.buffer_endpoint, self.weights_endpoint = buffer, weights
            yield

    def of(self, name: str, *, resume: bool = False) -> Command:
        """Returns the command of a process. `resume`: whether a learner continues the run."""
        if name == "buffer":
            return self.buffer()
        if name != "learner":
            return self.actor(int(name.removeprefix("actor-")))
        made = self.learner()
        return replace(made, words=[*made.words, "--resume"]) if resume else made

    @property
    def config_file(self) -> str:
        """The run's current settings file."""
        return str(RunFolder(self.plan.run).config_file)

    def buffer(self) -> Command:
        return Command([
            *module_command("buffer.cli"), "serve", "--config", self.config_file,
            "--store", str(RunFolder(self.plan.run).store), "--bind", self.buffer_endpoint,
            *_keys(self.plan, "service.json"),
        ])  # fmt: skip

    def learner(self) -> Command:
        """Returns the learner's command. With several ranks, it starts DeepSpeed's launcher."""
        rank = self.rank()
        if self.plan.topology.count == 1:
            return rank
        worker = rank.words[rank.words.index("learner.cli") :]
        words = [
            *module_command("deepspeed.launcher.launch"),
            *launcher_arguments(self._places(), self.free_port()), *worker,
        ]  # fmt: skip
        return replace(rank, words=words)

    def rank(self) -> Command:
        """Returns the command of one learner rank. Environment variables hold the rank's number."""
        topology = self.plan.topology
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if topology.device == "cpu" else {}
        # DeepSpeed's launcher starts the ranks without -P.
        ranks = {"PYTHONSAFEPATH": "1"} if topology.count > 1 else {}
        # Launchers have these arguments too, but not in one sequence.
        worker = ("-m", "learner.cli", "train", "--config", self.config_file)
        words = [
            *module_command("learner.cli"),
            "train", "--config", self.config_file, "--run", str(self.plan.run),
            "--buffer", reached(self.buffer_endpoint), "--weights", self.weights_endpoint,
            *_keys(self.plan, ""),
        ]  # fmt: skip
        return Command(words, _cpu_env(topology.threads) | hidden | ranks, worker)

    def _places(self) -> Sequence[int | str]:
        """Returns the GPU of each rank, or numbers if the machine has no GPUs."""
        ranks = self.plan.topology.ranks[0]
        return ranks.gpus or range(ranks.count)

    def actor(self, index: int) -> Command:
        """Returns an actor's command. `self.services`: the machine that runs the services."""
        place, machine = self.plan.topology.actors[index], self.services
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus)} if place.gpus else {}
        given = f"actor.engine.gpu_memory_utilization={place.share}"
        words = [
            *module_command("actors.cli"), "--config", self.config_file,
            "--buffer", reached(self.buffer_endpoint, machine),
            "--weights", reached(self.weights_endpoint, machine),
            "--name", f"actor-{index}", *_keys(self.plan, "client.json"),
            *([] if place.share is None else [given]),
        ]  # fmt: skip
        return Command(words, _cpu_env(place.threads) | gpus, at_once=True)


def launcher_arguments(places: Sequence[int | str], port: int | str) -> list[str]:
    """Returns the arguments of deepspeed.launcher.launch before the ranks' module. `places`: the
    GPU of each rank, as in CUDA_VISIBLE_DEVICES.

    DeepSpeed's other program, deepspeed.launcher.runner, is for several machines. On one machine it
    only starts deepspeed.launcher.launch, after importing torch itself, which takes seconds and
    memory.
    """
    world = json.dumps({"localhost": list(places)}).encode()
    return [
        "--world_info", base64.urlsafe_b64encode(world).decode(), "--master_port", str(port),
        "--no_local_rank", "--module",
    ]  # fmt: skip


def _cpu_env(threads: int | None) -> dict[str, str]:
    """Returns settings of OpenMP and MKL. Waiting threads sleep, unless `threads` is None."""
    if threads is None:
        return STEADY_THREADS
    return STEADY_THREADS | {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


def _keys(plan: Plan, file: str) -> list[str]:
    """Returns the option that names a key file or the key folder; [] if the run has no keys."""
    return [] if plan.keys is None else ["--keys", str(plan.keys / file)]


def free_port() -> int:
    """Finds a free TCP port for DeepSpeed's `--master_port`.

    The port is below the system's range for outgoing connections, so no connection takes it before
    rank 0 listens. The port is random and does not depend on the run's seed.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
