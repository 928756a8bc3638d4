"""Holds a run that is being planned: its settings and options, and values computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from envs.builtin.policy import model_path
from envs.preflight import FirstStep, try_tasks
from envs.registry import tasks_of_all
from launch.backends.backend import Backend
from launch.backends.registry import LOCAL, backend
from launch.checks.resume import changed_settings
from launch.checks.services import LOOPBACK, Services
from launch.topology.machines import Machine, RequestedPlaces, described, parse_learner
from launch.topology.memory_estimate import Estimate
from launch.topology.placement import Plan, Topology, place
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.model_folder import check_checksums, check_model_folder, read_tokenizer
from r3l.records import Task
from r3l.rollout.chat import ChatFormat

ANY_NODE = "other nodes"
LONGEST_OF = 1000


@dataclass(frozen=True)
class PlanOptions:
    """The options of one run, named like those of r3l-launch.

    `force`: resume even with changed settings, and start even if the memory estimate is too large.
    `dry_run`: skip the slow checks (chat template, the environment's first steps). `hardware`: plan
    for these machines, which are not checked. `cluster`: the name of the backend.
    """

    run: Path
    actors: int = 1
    learner: str = "1cpu"
    buffer_bind: str = LOOPBACK
    weights_bind: str = LOOPBACK
    keys: Path | None = None
    resume: bool = False
    force: bool = False
    dry_run: bool = False
    hardware: str | None = None
    cluster: str = LOCAL


@dataclass(frozen=True)
class Draft:
    """The settings and options of a run, and values computed from them.

    Each property is computed when a check first reads it, so in the order of the checks. A property
    that cannot be computed raises UserError.
    """

    config: RunConfig
    options: PlanOptions

    @cached_property
    def backend(self) -> Backend:
        """The backend that starts the run."""
        return backend(self.options.cluster)

    @cached_property
    def requested(self) -> RequestedPlaces:
        """The places that the options request."""
        gpus = self.config.actor.engine.get("tensor_parallel_size", 1)
        if not isinstance(gpus, int):
            raise UserError(f"actor.engine.tensor_parallel_size={gpus}: must be a number of GPUs")
        return RequestedPlaces(self.options.actors, *parse_learner(self.options.learner), gpus)

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """The machines on which the run is placed."""
        hardware = self.options.hardware
        return self.backend.machines() if hardware is None else described(hardware)

    @cached_property
    def tasks(self) -> list[Task]:
        """The first training and evaluation task of each environment, if it has any."""
        env, each = self.config.env, len(self.config.env.names)
        return [
            *tasks_of_all(env, "train", min(each, env.train_tasks), self.config.seed),
            *tasks_of_all(env, "eval", min(each, self.config.eval.tasks)),
        ]

    @cached_property
    def longest_task(self) -> list[Task]:
        """The training task with the longest options among LONGEST_OF, if options differ."""
        wanted = min(LONGEST_OF, self.config.env.train_tasks)
        tasks = tasks_of_all(self.config.env, "train", wanted, self.config.seed)
        longest = max(tasks, key=lambda task: len(repr(task.options)), default=None)
        return [] if longest is None or longest in self.tasks else [longest]

    @cached_property
    def first_steps(self) -> dict[str, FirstStep]:
        """The sizes of the first step of `tasks` and `longest_task`, by task id."""
        tasks = [] if self.options.dry_run else [*self.tasks, *self.longest_task]
        steps = try_tasks(self.config.env, tasks, self.chat) if tasks else []
        return {task.task_id: step for task, step in zip(tasks, steps, strict=True)}

    @cached_property
    def model(self) -> Path:
        """The model's folder, whose files have been checked."""
        folder = model_path(self.config.model)
        check_model_folder(folder, f"model {self.config.model}")
        check_checksums(folder, f"model {self.config.model}")
        return folder

    @cached_property
    def chat(self) -> ChatFormat:
        """The model's chat format."""
        tokenizer = read_tokenizer(self.model, f"model {self.config.model}")
        return ChatFormat(tokenizer, earlier_reasoning=self.config.actor.earlier_reasoning)

    @cached_property
    def settled(self) -> RunConfig:
        """The settings that the processes read."""
        return self.config.model_copy(update={"model": str(self.model)})

    @cached_property
    def topology(self) -> Topology:
        """The places of all processes."""
        estimate = Estimate.of(self.settled)
        return place(self.requested, self.machines, estimate, force=self.options.force)

    @cached_property
    def services(self) -> Services:
        """The addresses and keys of the services."""
        services = Services(self.options.buffer_bind, self.options.weights_bind, self.options.keys)
        anywhere = (ANY_NODE,) if self.backend.moves_actors else ()
        return services.reached_from(self.topology.elsewhere or anywhere, self.options.run)

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """A line for each setting that a resumed run changes."""
        if not self.options.resume:
            return ()
        return changed_settings(self.options.run, self.settled, force=self.options.force)

    @property
    def in_bfloat16(self) -> bool:
        """Whether the learner computes in bfloat16."""
        chosen = self.config.learner.dtype
        return chosen == "bfloat16" or (chosen == "auto" and self.requested.device == "gpu")

    def plan(self) -> Plan:
        """The plan, after all checks have passed."""
        return Plan(
            config=self.settled,
            run=self.options.run,
            topology=self.topology,
            buffer_bind=self.services.buffer,
            weights_bind=self.services.weights,
            resume=self.options.resume,
            keys=self.services.keys,
            changed=self.changed,
            first_steps=self.first_steps,
        )
