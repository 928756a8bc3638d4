"""Writes a SLURM batch script that starts the same commands as r3l-launch.

It is a heterogeneous job. Its first component has the learner's nodes; the buffer service and rank
0 run on the first of these nodes. Its second component has the nodes that run only actors. srun
starts every process as a step on its node. Dead processes are restarted, but unresponsive ones are
not detected.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from launch.backends.backend import Backend
from launch.backends.process_commands import ProcessCommands
from launch.backends.processes import import_path
from launch.topology.machines import Machine
from launch.topology.placement import Plan
from r3l.errors import UserError
from r3l.process.memory import STEADY_MEMORY

TEMPLATE = Path(__file__).with_name("job.sbatch.j2")
BUFFER_PORT, WEIGHTS_PORT, RANKS_PORT = 5555, 5556, 29500
RESTARTS = 3
ENDING_S = 100  # timeout of a step that was asked to end
SCRIPT = "job.sbatch"
NOTED = """'echo "$JOB.$SLURM_STEP_ID" >"$logs/.step-$0"; exec "$@"'"""
"""Writes a step's number to a file, and then becomes the step's process."""
AS_RANK = """bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"' rank"""
STEP = "srun --overlap --cpu-bind=none"


class Slurm(Backend):
    """Writes a run's batch script for the nodes that --hardware describes."""

    has_nodes = starts_later = True

    def machines(self) -> tuple[Machine, ...]:
        """Raises UserError, because a batch script is written before its nodes are known."""
        raise UserError(
            "--cluster slurm: needs a description of its nodes; add --hardware, such as 2x8x80GB"
        )

    def preview(self, plan: Plan) -> str:
        """The batch script."""
        return script(plan)

    def write_script(self, plan: Plan) -> str:
        """Write the batch script into the run's folder; returns the command that submits it."""
        path = plan.run / SCRIPT
        path.write_text(script(plan), encoding="utf-8")
        return f"sbatch {path}"


class SlurmCommands(ProcessCommands):
    """Builds a plan's commands as SLURM job steps. The services listen on known ports."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.buffer_endpoint = _with_port(plan.buffer_bind, BUFFER_PORT)
        self.weights_endpoint = _with_port(plan.weights_bind, WEIGHTS_PORT)
        names = [machine.name for machine in plan.topology.machines]
        self.nodes = {name: f'"${{nodes[{index}]}}"' for index, name in enumerate(names)}
        trained = [part.machine for part in plan.topology.ranks]
        acting = [place.machine for place in plan.topology.actors]
        self.parts = [trained, [name for name in names if name in acting and name not in trained]]

    def buffer_step(self) -> str:
        """The step that runs the buffer service, on the first node."""
        where = self._on(self.plan.topology.machines[0].name)
        return f"{where} {self._noted(0, 'buffer')} {shlex.join(self.buffer())}"

    def learner_step(self) -> str:
        """The step that runs all learner ranks; srun replaces DeepSpeed's launcher."""
        ranks = self.plan.topology.ranks
        where = f"--nodes={len(ranks)} --ntasks={sum(r.count for r in ranks)}"
        command = shlex.join(["env", *_pairs(self.learner_env()), *self.rank(), "--resume"])
        where += f" --ntasks-per-node={ranks[0].count}"
        step = f"{STEP}{self._group(0)} {where} {self._noted(0, 'learner')}"
        return " ".join([step, *([AS_RANK] if self.plan.topology.count > 1 else []), command])

    def actor_step(self, index: int) -> str:
        """The step that runs one actor, on its node."""
        place = self.plan.topology.actors[index]
        first = self.plan.topology.machines[0].name
        services = "127.0.0.1" if place.machine == first else first
        words = shlex.join(
            ["env", *_pairs(self.actor_env(index)), *self.actor_reaching(index, services)]
        )
        noted = self._noted(self._part(place.machine), f"actor-{index}")
        step = f"{self._on(place.machine)} {noted} {words}"
        return step.replace(f"//{first}:", '//"$first":')

    def nodes_of(self, part: int) -> str:
        """The sbatch options for a component's resources; "" if the component has no nodes."""
        if not self.parts[part]:
            return ""
        topology, names = self.plan.topology, self.parts[part]
        tasks = topology.ranks[0].count if part == 0 else 1
        gpus = next(len(each.gpus) for each in topology.machines if each.name == names[0])
        on_gpus = f" --gpus-per-node={gpus}" if gpus else ""
        return f"--nodes={len(names)} --ntasks-per-node={tasks} --exclusive{on_gpus}"

    def _on(self, machine: str) -> str:
        part = self._part(machine)
        return f"{STEP}{self._group(part)} --nodes=1 --ntasks=1 --nodelist={self.nodes[machine]}"

    def _part(self, machine: str) -> int:
        return next(index for index, names in enumerate(self.parts) if machine in names)

    def _noted(self, part: int, name: str) -> str:
        # In every component SLURM_JOB_ID is that of the first one.
        job = f"SLURM_JOB_ID_HET_GROUP_{part}" if self.parts[1] else "SLURM_JOB_ID"
        return f"bash -c {NOTED.replace('JOB.', job + '.')} {name}"

    def _group(self, part: int) -> str:
        return f" --het-group={part}" if self.parts[1] else ""


def script(plan: Plan) -> str:
    """Returns the batch script of a plan."""
    made, topology = SlurmCommands(plan), plan.topology
    here = os.getcwd()
    common = {**STEADY_MEMORY, "PYTHONUNBUFFERED": "1", "PYTHONPATH": import_path()}
    page = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    page.filters["quote"] = shlex.quote
    return page.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        name=f"r3l-{plan.run.name}",
        folder=here,
        logs=str(Path(here) / plan.run / "logs"),
        learner_nodes=made.nodes_of(0),
        actor_nodes=made.nodes_of(1),
        environment=_pairs(common),
        ranks=topology.count,
        ranks_port=RANKS_PORT,
        ending_s=ENDING_S,
        restarts=RESTARTS,
        buffer=made.buffer_step(),
        learner=made.learner_step(),
        actors=[made.actor_step(index) for index in range(plan.actors)],
    )


def _with_port(bind: str, port: int) -> str:
    address, _, given = bind.rpartition(":")
    return f"{address}:{port if given in ('*', '0') else given}"


def _pairs(env: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in env.items()]
