"""Prints a plan: where each process runs, the memory estimate, and every command."""

import shlex
from collections.abc import Iterator, Sequence

from launch.backends.process_commands import ProcessCommands
from launch.topology.gpu_memory import MOST
from launch.topology.machines import ActorPlace
from launch.topology.placement import Plan
from r3l.run.process.command_line import columns

HEADINGS = ("process", "machine", "GPUs", "memory", "threads", "address")
ANY = "*"  # a port that is chosen at the start


def text(plan: Plan, made: ProcessCommands | None = None, places: Sequence[str] = ()) -> str:
    """Returns the whole plan as text. `made`: builder of the commands (default: for one
    machine). `places`: paragraphs on where a cluster runs the processes."""
    typed = "\n\n".join(commands(plan, made or ProcessCommands(plan)))
    parts = ["\n".join(table(plan)), *places, *plan.topology.memory, typed]
    checked = "settings, algorithm, model folder, tasks, DeepSpeed settings, run folder, "
    checked += "addresses and keys"
    later = "chat template and a first step of the environment: r3l-launch --check"
    return "\n\n".join([*parts, f"checked: {checked}\nnot checked: {later}"])


def table(plan: Plan) -> list[str]:
    """Returns a table: one line for the buffer, one per machine with ranks, and one per actor."""
    topology = plan.topology
    first = topology.machines[0].name
    rows = [HEADINGS, ("buffer", first, "", "", "", plan.buffer_bind)]
    begins = 0
    for local in topology.ranks:
        ends = begins + local.count - 1
        name = f"learner {begins}" if local.count == 1 else f"learner {begins}-{ends}"
        address = "" if begins else plan.weights_bind
        memory = "the rest" if any(place.share for place in topology.actors) else ""
        rows.append((name, local.machine, _names(local.gpus), memory if local.gpus else "",
                     str(topology.threads or ""), address))  # fmt: skip
        begins += local.count
    for index, place in enumerate(topology.actors):
        rows.append((f"actor-{index}", place.machine, _names(place.gpus), _share(plan, place),
                     str(place.threads or ""), ""))  # fmt: skip
    return columns(rows)


def _share(plan: Plan, place: ActorPlace) -> str:
    if not place.gpus:
        return ""
    given = plan.config.actor.engine.get("gpu_memory_utilization")
    return f"{given or place.share or MOST:.0%}"


def _names(gpus: Sequence[str]) -> str:
    """Formats GPU names: consecutive indices as a range such as `0-3`, others joined by commas."""
    if len(gpus) > 2 and all(gpu.isdecimal() for gpu in gpus):
        first, last = int(gpus[0]), int(gpus[-1])
        if [int(gpu) for gpu in gpus] == list(range(first, last + 1)):
            return f"{first}-{last}"
    return ",".join(gpus)


def commands(plan: Plan, made: ProcessCommands) -> Iterator[str]:
    """Yields every command with its environment variables, quoted for a shell."""
    made.free_port = lambda: ANY
    for name in ("buffer", "learner", *(f"actor-{index}" for index in range(plan.actors))):
        command = made.of(name)
        env = [f"{key}={shlex.quote(value)}" for key, value in command.env.items()]
        yield " ".join([*env, shlex.join(command.words)])
