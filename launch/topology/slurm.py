"""A run as one SLURM batch script, which starts the commands that r3l-launch starts on one machine.

A heterogeneous job: its first component has the learner's nodes, with the buffer service and rank 0
on the first of them, its second one the nodes with actors alone. srun starts every process as a
step on its node. What dies is started again, as r3l-launch does; nothing watches for silence.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from launch.plan import Plan
from launch.process_commands import ProcessCommands
from launch.processes import import_path
from learner.run_files import LAUNCHER
from r3l.process.memory import STEADY_MEMORY

BUFFER_PORT, WEIGHTS_PORT, RANKS_PORT = 5555, 5556, 29500
RESTARTS = 3
ENDING_S = 100  # for a step that was asked to end
SCRIPT = "job.sbatch"
NOTED = """'echo "$JOB.$SLURM_STEP_ID" >"$logs/.step-$0"; exec "$@"'"""
"""A step that says which one it is, before it becomes its process."""
AS_RANK = """bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec "$@"' rank"""
STEP = "srun --overlap --cpu-bind=none"
FUNCTIONS = f"""
# Wait for a process, also after a signal has ended a wait; returns its exit code.
ended() {{
  local code
  while wait "$1"; code=$?; [ "$code" -gt 128 ] && kill -0 "$1" 2>/dev/null; do :; done
  return "$code"
}}

# Ask a step to end, which is named in file $1 a moment after its start. A signal to its srun, $2,
# would kill it at once, so that is for a step that does not end.
ask() {{
  local asked=
  for second in $(seq {ENDING_S}); do
    [ -z "$2" ] || kill -0 "$2" || return
    [ "$asked" ] || {{ [ -s "$1" ] && scancel --signal=TERM "$(cat "$1")" && asked=1; }}
    sleep 1
  done
  kill -TERM "$2"
}}

# Run a process with its output in its log, again if it dies; exit codes 2 and 3 are final.
again() {{
  local name=$1 child= code=1 stopped= at="$logs/.step-$1"
  shift
  trap 'stopped=1; ask "$at" "$child" >/dev/null 2>&1 &' TERM
  for try in $(seq 0 {RESTARTS}); do
    rm -f "$at"
    "$@" >>"$logs/$name.log" 2>&1 &
    child=$!
    ended "$child"; code=$?
    case "$stopped:$code" in 1:*|:0|:2|:3) break ;; esac
    echo "$name ended with exit code $code; started again ($((try + 1)) of {RESTARTS})"
    sleep 5
    if [ "$stopped" ]; then break; fi
  done
  return "$code"
}}
"""
ENDING = """
# The learner ends the job; before its time limit SLURM asks it to.
trap 'kill -TERM "$learner"' TERM
ended "$learner"; code=$?
kill -TERM "${actors[@]}" 2>/dev/null
for actor in "${actors[@]}"; do ended "$actor"; done
kill -TERM "$buffer" 2>/dev/null
ended "$buffer"
exit "$code"
"""


class SlurmCommands(ProcessCommands):
    """The commands of a plan as steps of a SLURM job, whose services listen at known ports."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.buffer_endpoint = _with_port(plan.buffer_bind, BUFFER_PORT)
        self.weights_endpoint = _with_port(plan.weights_bind, WEIGHTS_PORT)
        names = [machine.name for machine in plan.topology.machines]
        self.nodes = {name: f'"${{nodes[{index}]}}"' for index, name in enumerate(names)}
        trained = [part.machine for part in plan.topology.ranks]
        ours = [place.machine for place in plan.topology.actors]
        self.parts = [trained, [name for name in names if name in ours and name not in trained]]

    def buffer_step(self) -> str:
        """The buffer service, on the first node."""
        where = self._on(self.plan.topology.machines[0].name)
        return f"{where} {self._noted(0, 'buffer')} {shlex.join(self.buffer())}"

    def learner_step(self) -> str:
        """All ranks of the learner; srun takes the place of DeepSpeed's launcher."""
        ranks = self.plan.topology.ranks
        env = {key: value for key, value in self.learner_env().items() if key != LAUNCHER}
        where = f"--nodes={len(ranks)} --ntasks={sum(r.count for r in ranks)}"
        command = shlex.join(["env", *_pairs(env), *self.rank(), "--resume"])
        where += f" --ntasks-per-node={ranks[0].count}"
        step = f"{STEP}{self._group(0)} {where} {self._noted(0, 'learner')}"
        return " ".join([step, *([AS_RANK] if self.plan.topology.count > 1 else []), command])

    def actor_step(self, index: int) -> str:
        """One actor, on its node."""
        place = self.plan.topology.actors[index]
        first = self.plan.topology.machines[0].name
        words = shlex.join(["env", *_pairs(self._place_env(index)), *self.actor(index)])
        noted = self._noted(self._part(place.machine), f"actor-{index}")
        step = f"{self._on(place.machine)} {noted} {words}"
        return step.replace(f"//{first}:", '//"$first":')

    def _through_ssh(self, machine: str, command: list[str], env: dict[str, str]) -> list[str]:
        return command  # srun is in its place

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


def write(plan: Plan) -> Path:
    """Write the batch script into the run's folder; returns its path."""
    path = plan.run / SCRIPT
    path.write_text(script(plan), encoding="utf-8")
    return path


def script(plan: Plan) -> str:
    """The batch script of a plan, whose settings and keys are in its run folder."""
    made, topology = SlurmCommands(plan), plan.topology
    common = {**STEADY_MEMORY, "PYTHONUNBUFFERED": "1", "PYTHONPATH": import_path()}
    if topology.count > 1:
        common |= {"WORLD_SIZE": str(topology.count), "MASTER_PORT": str(RANKS_PORT)}
    logs = Path(os.getcwd()) / plan.run / "logs"
    actors = [
        f"again actor-{index} {made.actor_step(index)} & actors+=($!)"
        for index in range(plan.actors)
    ]
    lines = [
        "#!/bin/bash",
        f"# {plan.actors} actors and {topology.count} ranks, by r3l-launch --cluster slurm.",
        f"#SBATCH --job-name={shlex.quote('r3l-' + plan.run.name)}",
        f"#SBATCH --output={shlex.quote(str(logs / 'slurm-%j.log'))}",
        "#SBATCH --signal=B:TERM@120",
        *_resources(made),
        "",
        f"cd {shlex.quote(os.getcwd())} || exit 1",
        f"export logs={shlex.quote(str(logs))}",
        *_node_lines(made),
        "first=${nodes[0]}",
        *(f"export {pair}" for pair in map(shlex.quote, _pairs(common))),
        *(["export MASTER_ADDR=$first"] if topology.count > 1 else []),
        FUNCTIONS,
        "again buffer " + made.buffer_step() + " & buffer=$!",
        "",
        "again learner " + made.learner_step() + " & learner=$!",
        "",
        "actors=()",
        *actors,
        ENDING,
    ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def _resources(made: SlurmCommands) -> list[str]:
    """The #SBATCH lines of each component."""
    topology = made.plan.topology
    gpus = {machine.name: len(machine.gpus) for machine in topology.machines}
    what = ("# the learner; the buffer service and rank 0 on the first node", "# actors alone")
    lines: list[str] = []
    for index, names in enumerate(made.parts):
        if not names:
            continue
        tasks = topology.ranks[0].count if index == 0 else 1
        lines += ["#SBATCH hetjob"] if index else []
        each = f"#SBATCH --nodes={len(names)} --ntasks-per-node={tasks} --exclusive"
        on_gpus = f" --gpus-per-node={gpus[names[0]]}" if gpus[names[0]] else ""
        lines += [what[index], each + on_gpus]
    return lines


def _node_lines(made: SlurmCommands) -> Sequence[str]:
    """The array of nodes, in the order of the plan's machines."""
    if not made.parts[1]:
        return ['nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))']
    listed = " ".join(
        f'$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_{part}")' for part in (0, 1)
    )
    return [f"nodes=({listed})"]


def _with_port(bind: str, port: int) -> str:
    address, _, given = bind.rpartition(":")
    return f"{address}:{port if given in ('*', '0') else given}"


def _pairs(env: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in env.items()]
