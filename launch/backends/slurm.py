"""Writes a SLURM batch script that starts the same commands as r3l-launch.

The learner's ranks run on the first nodes. Rank 0 and the buffer service run on the very first one.
srun starts each process as a job step. All ranks form one step. A step that ends is restarted up to
RESTARTS times, unless its exit code is 0, 2 or 3. An unresponsive process is not detected.
"""

import os
import shlex
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from launch.backends.backend import Backend
from launch.backends.process_commands import ProcessCommands
from launch.topology.machines import Machine
from launch.topology.placement import Plan
from r3l.errors import UserError
from r3l.files.own_packages import import_path
from r3l.run.process.memory import STEADY_MEMORY

TEMPLATE = Path(__file__).with_name("job.sbatch.j2")
BUFFER_PORT, WEIGHTS_PORT, RANKS_PORT = 5555, 5556, 29500
RESTARTS = 3
ENDING_S = 100  # timeout of a step that was asked to end
SCRIPT = "job.sbatch"
NOTED = """bash -c 'echo "$SLURM_JOB_ID.$SLURM_STEP_ID" >"$logs/.step-$0"; exec "$@"'"""
"""A shell command that writes the job step's id to a file. It then becomes the step's process."""
AS_RANK = """bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"' rank"""
STEP = "srun --overlap --cpu-bind=none"


class Slurm(Backend):
    """Writes a run's batch script for the nodes that --hardware describes."""

    has_nodes = starts_later = True

    def machines(self) -> tuple[Machine, ...]:
        """Always raises UserError: --hardware must describe the nodes."""
        raise UserError(
            "--cluster slurm: needs a description of its nodes; add --hardware, such as 2x8x80GB"
        )

    def preview(self, plan: Plan) -> str:
        return script(plan)

    def write_script(self, plan: Plan) -> str:
        """Writes the batch script into the run's folder. Returns the command that submits it."""
        path = plan.run / SCRIPT
        path.write_text(script(plan), encoding="utf-8")
        return f"sbatch {path}"


class SlurmCommands(ProcessCommands):
    """Builds a plan's commands as SLURM job steps. The services listen on fixed ports."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.buffer_endpoint = _with_port(plan.buffer_bind, BUFFER_PORT)
        self.weights_endpoint = _with_port(plan.weights_bind, WEIGHTS_PORT)
        names = [machine.name for machine in plan.topology.machines]
        self.first = names[0]
        self.nodes = {name: f'"${{nodes[{index}]}}"' for index, name in enumerate(names)}

    def buffer_step(self) -> str:
        """Returns the step that runs the buffer service, on the first node."""
        return f"{self._on(self.first)} {NOTED} buffer {shlex.join(self.buffer().words)}"

    def learner_step(self) -> str:
        """Returns the step that runs all learner ranks. DeepSpeed's launcher is not used."""
        ranks, count = self.plan.topology.ranks, self.plan.topology.count
        where = f"--nodes={len(ranks)} --ntasks={count} --ntasks-per-node={ranks[0].count}"
        rank = self.rank()
        command = shlex.join(["env", *_pairs(rank.env), *rank.words, "--resume"])
        step = f'{STEP} {where} --nodelist="$learner_nodes" {NOTED} learner'
        return " ".join([step, *([AS_RANK] if count > 1 else []), command])

    def actor_step(self, index: int) -> str:
        """Returns the step that runs one actor, on its node."""
        machine = self.plan.topology.actors[index].machine
        self.services = "127.0.0.1" if machine == self.first else self.first
        command = self.actor(index)
        words = shlex.join(["env", *_pairs(command.env), *command.words])
        step = f"{self._on(machine)} {NOTED} actor-{index} {words}"
        return step.replace(f"//{self.first}:", '//"$first":')

    def resources(self) -> str:
        """Returns the sbatch options that request the nodes."""
        topology = self.plan.topology
        gpus = len(topology.machines[0].gpus)
        tasks = f"--nodes={len(self.nodes)} --ntasks-per-node={topology.ranks[0].count}"
        return f"{tasks} --exclusive" + (f" --gpus-per-node={gpus}" if gpus else "")

    def _on(self, machine: str) -> str:
        return f"{STEP} --nodes=1 --ntasks=1 --nodelist={self.nodes[machine]}"


def script(plan: Plan) -> str:
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
        resources=made.resources(),
        learner_nodes=len(topology.ranks),
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
