"""Runs a plan's processes on the nodes of a Ray cluster. r3l-launch runs on the head node.

r3l-launch ─ buffer                                 on the head, which has the buffer's store
    └─ placement group ─ bundle ─ runner ─ ranks    the first bundle is on the head
                         bundle ─ runner ─ actors   on any node with room
A runner is a Ray actor that starts processes. Runners and their processes end with r3l-launch.
When a node is lost, Ray moves its bundles elsewhere, and the supervisor restarts the processes.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from launch.backends.backend import Backend
from launch.backends.processes import KILLED_S, STACKS_S, Child, Children, Command
from launch.backends.ray_placement import (
    Bundle,
    RayCommands,
    bundles,
    connect,
    gpus_of,
    rank_name,
    ray_machines,
    text,
)
from launch.topology.machines import Machine
from launch.topology.placement import Plan
from learner.exit_codes import STACKS
from r3l.errors import UserError
from r3l.run.process.file_modes import set_file_modes

ROOM_S = 60  # timeout of reserving all bundles
GPUS = "CUDA_VISIBLE_DEVICES"

ProcessState = tuple[int | None, bool]
"""The exit code (None while the process runs), and whether the process is stopped."""


class Runner:
    """A Ray actor on a bundle's node. It starts the bundle's processes with the bundle's GPUs."""

    def __init__(self, folder: str, logs: str, python: str, hang_s: float) -> None:
        import ray

        node = ray.get_runtime_context().get_node_id()
        self.node = f"{ray.util.get_node_ip_address()} ({node[:8]})"
        for path in (folder, logs, python):
            if not Path(path).exists():
                raise FileNotFoundError(f"{path} is missing on node {self.node}")
        os.chdir(folder)
        set_file_modes()
        os.environ.pop("OMP_NUM_THREADS", None)  # which Ray sets
        self.children = Children(Path(logs), hang_s)

    def start(self, name: str, command: Command, gpus: list[int]) -> dict[str, ProcessState]:
        """Starts a process. `gpus`: indices into the bundle's GPUs."""
        if gpus:
            reserved = os.environ[GPUS].split(",")
            ours = {GPUS: ",".join(reserved[at] for at in gpus)}
            command = replace(command, env=command.env | ours)
        with (self.children.logs / f"{name}.log").open("a", encoding="utf-8") as log:
            log.write(f"{name} on node {self.node}, GPUs: {command.env.get(GPUS) or 'none'}\n")
        self.children.start(name, replace(command, worker=()))
        return self.states()

    def states(self) -> dict[str, ProcessState]:
        return {c.name: (c.exit_code, c.stopped) for c in self.children.members.values()}

    def send(self, name: str, *signums: int) -> None:
        """Sends signals to a process, unless it has already ended."""
        for signum in signums:
            self.children.members[name].process.send_signal(signum)

    def kill(self, name: str) -> None:
        self.children.members[name].kill()


class RemoteRunner:
    """Controls a runner. Only `kill` waits for the runner. `lost`: why the runner ended, or ""."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.actor = make, make()
        self.states: dict[str, ProcessState] = {}
        self.ran = False
        self.lost = ""
        self._asked: dict[str, tuple[Any, ...]] = {}  # start requests, until the first reply
        self._reply: Any = None

    def start(self, name: str, *how: Any) -> None:
        """Starts a process as soon as the runner is running."""
        self.states[name] = (None, False)
        self._asked[name] = how
        self._reply = self.actor.start.remote(name, *how)

    def state(self, name: str) -> ProcessState:
        """Returns the state of a process, as the runner last reported it."""
        self._hear()
        return self.states[name]

    def send(self, name: str, *signums: int) -> None:
        """Sends signals to a process, or ends this runner if it still waits for a node."""
        if not self.ran:
            self._end("it waited for a node")
        if not self.lost:
            self.actor.send.remote(name, *map(int, signums))

    def kill(self, name: str) -> None:
        """Kills a process, or ends this runner if it still waits for a node."""
        import ray

        if not self.ran:
            self._end("it waited for a node")
        if not self.lost:
            ray.wait([self.actor.kill.remote(name)], timeout=2 * KILLED_S)

    def _hear(self) -> None:
        import ray

        if self.lost:
            return
        self._reply = self._reply or self.actor.states.remote()
        if not ray.wait([self._reply], timeout=0)[0]:
            return
        reply, self._reply = self._reply, None
        try:
            self.states |= ray.get(reply)
            self.ran = True
            self._asked.clear()
        except ray.exceptions.RayError as error:
            if self.ran or getattr(error, "actor_init_failed", True):
                self._end(_reason(str(error)))
                return
            # Ray placed the runner on a lost node, whose loss it had not yet noticed.
            self.actor = self.make()
            for name, how in self._asked.items():
                self._reply = self.actor.start.remote(name, *how)

    def _end(self, why: str) -> None:
        import ray

        self.lost = why
        self.states = dict.fromkeys(self.states, (-signal.SIGKILL, False))
        ray.kill(self.actor)


def _reason(error: str) -> str:
    """Returns why a runner ended: its own error, or the loss of its node."""
    raised = [line for line in error.splitlines() if line.startswith("FileNotFoundError: ")]
    return raised[-1].partition(": ")[2] if raised else "its node, or Ray's worker there, was lost"


class RemoteChild(Child):
    """A process started by a runner."""

    def __init__(
        self, name: str, log: Path, runner: RemoteRunner, worker: tuple[str, ...] = ()
    ) -> None:
        here: Any = None  # this process started none
        begins = log.stat().st_size if log.exists() else 0
        super().__init__(name, None, worker, log=log, process=here, log_from=begins)
        self.runner = runner

    @property
    def exit_code(self) -> int | None:
        """The exit code: -9 if the runner ended, None while the process runs or awaits a node."""
        code, _ = self.runner.state(self.name)
        self.killed_for = self.killed_for or self.runner.lost
        return code

    @property
    def stopped(self) -> bool:
        return self.runner.state(self.name)[1]

    def terminate(self) -> None:
        self.runner.send(self.name, signal.SIGTERM, signal.SIGCONT)

    def show_stacks(self) -> None:
        self.runner.send(self.name, STACKS, signal.SIGCONT)

    def kill(self) -> None:
        self.runner.kill(self.name)


class RankGroup(RemoteChild):
    """Treats all ranks as one process. When one rank fails, the others are killed."""

    def __init__(self, ranks: list[RemoteChild]) -> None:
        super().__init__(ranks[0].name, ranks[0].log, ranks[0].runner, ranks[0].worker)
        self.ranks, self.failed = ranks, (0, ranks[0])

    @property
    def exit_code(self) -> int | None:
        """The exit code of a failed rank, or 0 once all have ended; None while they are running."""
        if self.failed[0]:
            return self.failed[0]
        codes = [rank.exit_code for rank in self.ranks]
        failed = [(code, rank) for code, rank in zip(codes, self.ranks, strict=True) if code]
        if failed:
            self.failed = failed[0]
            self.kill()
        return self.failed[0] or (None if None in codes else 0)

    def reason(self) -> str:
        return self.killed_for or Child.reason(self.failed[1])

    def terminate(self) -> None:
        for rank in self.ranks:
            rank.terminate()

    def show_stacks(self) -> None:
        for rank in self.ranks:
            rank.show_stacks()
        time.sleep(STACKS_S)

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()


class RayChildren(Children):
    """Starts all processes of a run: the buffer as a child of r3l-launch, the others in runners."""

    def __init__(self, plan: Plan, make: Callable[[int, Bundle], Any]) -> None:
        super().__init__(plan.run / "logs", plan.config.learner.hang_s)
        self.bundles, self.make = bundles(plan.topology), make
        self.gpus = gpus_of(plan.topology)
        self.ranks = [rank_name(rank) for rank in range(plan.topology.count)]
        self.runners: dict[int, RemoteRunner] = {}

    def start(self, name: str, command: Command) -> Child:
        """Starts the process `name`. Starts the learner's command once for each rank."""
        if name == "buffer":
            return super().start(name, command)
        self.clear(name)
        names = self.ranks if name == self.ranks[0] else [name]
        started = [self._start(each, command) for each in names]
        child = RankGroup(started) if len(started) > 1 else started[0]
        self.members[name] = child
        self.tell(child)  # so that the buffer ends after this machine's ranks
        return child

    def _start(self, name: str, command: Command) -> RemoteChild:
        at = next(i for i, bundle in enumerate(self.bundles) if name in bundle.processes)
        bundle = self.bundles[at]
        if name in self.ranks and len(self.ranks) > 1:
            local = bundle.processes.index(name)
            ours = {"RANK": str(self.ranks.index(name)), "LOCAL_RANK": str(local)}
            # A rank cannot end cleanly without the others.
            command = replace(command, env=command.env | ours, at_once=True)
        runner = self.runners.get(at)
        if runner is None or runner.lost:
            runner = self.runners[at] = RemoteRunner(lambda: self.make(at, bundle))
        child = RemoteChild(name, self.logs / f"{name}.log", runner, command.worker)
        gpus = [bundle.gpus.index(gpu) for gpu in self.gpus[name]]
        runner.start(name, command, gpus)
        return child

    def stop(self, meanwhile: Callable[[], None] = lambda: None) -> list[str]:
        """Ends all processes and leaves the cluster."""
        try:
            return super().stop(meanwhile)
        finally:
            import ray

            ray.shutdown()


class Ray(Backend):
    """Runs a plan on the Ray cluster whose head node is this machine."""

    has_nodes = moves_actors = True

    def machines(self) -> tuple[Machine, ...]:
        return ray_machines()

    def preview(self, plan: Plan) -> str:
        return text(plan)

    def commands(self, plan: Plan) -> RayCommands:
        return RayCommands(plan)

    def reserve(self, plan: Plan) -> RayChildren:
        """Reserves the plan's bundles. Returns the object that starts processes in them."""
        ray = connect()
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        needed = [bundle.resources for bundle in bundles(plan.topology)]
        group = placement_group(needed, strategy="SPREAD")
        if not group.wait(ROOM_S):
            raise UserError(_no_room(ray, needed))
        logs, hang_s = str((plan.run / "logs").resolve()), plan.config.learner.hang_s

        def make(at: int, bundle: Bundle) -> Any:
            needs = bundle.resources
            options = {"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0), "max_restarts": 0}
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at)
            remote = ray.remote(Runner).options(**options, scheduling_strategy=strategy)
            return remote.remote(os.getcwd(), logs, sys.executable, hang_s)

        return RayChildren(plan, make)


def _no_room(ray: Any, needed: Sequence[dict[str, float]]) -> str:
    free = {name: ray.available_resources().get(name, 0) for name in ("CPU", "GPU")}
    needs = {name: sum(each.get(name, 0) for each in needed) for name in free}
    return (
        f"--cluster ray: no room within {ROOM_S} s; the run needs {needs['CPU']:g} CPUs and "
        f"{needs['GPU']:g} GPUs, with rank 0 on the head node; {free['CPU']:g} CPUs and "
        f"{free['GPU']:g} GPUs are free"
    )
