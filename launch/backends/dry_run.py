"""Prints a plan: where each process runs, the memory estimate, how fast the store
grows, and every command."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from launch.backends.process_commands import ProcessCommands
from launch.topology import store_growth
from launch.topology.gpu_memory import MOST
from launch.topology.machines import ActorPlace
from launch.topology.placement import Plan
from r3l.run.process.command_line import columns

HEADINGS = ("process", "machine", "GPUs", "memory", "threads", "address")
ANY = "*"  # a port that is chosen at the start
MANY = 16  # actors that are listed one by one; of more, those of a machine are one line


def text(plan: Plan, made: ProcessCommands | None = None, places: Sequence[str] = ()) -> str:
    """Returns the whole plan as text. `made`: builder of the commands (default: for one
    machine). `places`: paragraphs on where a cluster runs the processes."""
    grows = store_growth.text(plan.config, plan.run)
    typed = "\n\n".join(commands(plan, made or ProcessCommands(plan)))
    parts = ["\n".join(table(plan)), *_start(plan), *places, *plan.topology.memory, grows, typed]
    checked = "settings, algorithm, model folder, tasks, DeepSpeed settings, run folder, "
    checked += "addresses and keys"
    later = "chat template, a first step of the environment, and whether a budget has room for a "
    later += "step: r3l-launch --check"
    return "\n\n".join([*parts, f"checked: {checked}\nnot checked: {later}"])


def table(plan: Plan) -> list[str]:
    """Returns a table: one line for the buffer, one per machine with ranks, and one per actor; with
    many actors, one per machine with actors."""
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
    for name, place in _actor_rows(topology.actors):
        rows.append((name, place.machine, _names(place.gpus), _share(plan, place),
                     str(place.threads or ""), ""))  # fmt: skip
    return columns(rows)


def _actor_rows(actors: Sequence[ActorPlace]) -> Iterator[tuple[str, ActorPlace]]:
    """Yields a name and a place for each line: an actor, or all actors of a machine that have equal
    shares, with the GPUs of them all."""
    if len(actors) <= MANY:
        yield from ((f"actor-{index}", place) for index, place in enumerate(actors))
        return
    alike = Counter(replace(place, gpus=()) for place in actors)
    for kind, count in alike.items():
        gpus = dict.fromkeys(
            gpu for each in actors if replace(each, gpus=()) == kind for gpu in each.gpus
        )
        yield f"{count} actors", replace(kind, gpus=tuple(sorted(gpus, key=_order)))


def _order(gpu: str) -> tuple[int, str]:
    return (int(gpu), "") if gpu.isdecimal() else (sys.maxsize, gpu)


def _start(plan: Plan) -> Iterator[str]:
    """Says how many actors start at the same time, and where."""
    if plan.actors <= MANY:
        return
    machines = Counter(place.machine for place in plan.topology.actors)
    most = max(machines.values())
    where = "this machine" if len(machines) == 1 else f"{len(machines)} machines"
    yield (
        f"{plan.actors} actors start together on {where}, as soon as the buffer is ready: up to "
        f"{most} load their libraries and weights on one machine at the same time"
    )


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
    """Yields every command with its environment variables, quoted for a shell. Of many actors,
    yields only the first one's command."""
    made.free_port = lambda: ANY
    shown = plan.actors if plan.actors <= MANY else 1
    for name in ("buffer", "learner", *(f"actor-{index}" for index in range(shown))):
        command = made.of(name)
        env = [f"{key}={shlex.quote(value)}" for key, value in command.env.items()]
        yield " ".join([*env, shlex.join(command.words)])
    if shown < plan.actors:
        yield f"and so on to actor-{plan.actors - 1}, each with its own name, GPUs and threads"
