"""The placement of a run's processes: machines and GPUs, shares of GPU memory, CPU threads.

Ranks take the first GPUs. Actors take turns on the GPUs that are left. If no GPU is left, they
share those of the ranks. No function here reads anything but its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from launch.topology.machines import Machine
from launch.topology.memory_estimate import Estimate
from launch.topology.memory_fit import GpuSet, SharedMemory, share_memory
from launch.topology.requested import RequestedPlaces
from r3l.errors import UserError

MOST_THREADS = 16  # of a process whose work is on a GPU


@dataclass(frozen=True)
class Ranks:
    """The ranks of the learner on one machine."""

    machine: str
    count: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class ActorPlace:
    """Where one actor runs. `share`: of the memory of each of its GPUs, None: vLLM's default;
    `threads`: of OpenMP, None: unset."""

    machine: str
    gpus: tuple[str, ...] = ()
    share: float | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Topology:
    """Where every process runs. The buffer and rank 0 run on the first machine. `threads`: of
    OpenMP for each rank, None: unset."""

    machines: tuple[Machine, ...]
    device: str
    ranks: tuple[Ranks, ...]
    actors: tuple[ActorPlace, ...]
    threads: int | None = None
    memory: tuple[str, ...] = ()
    """The estimate of GPU memory as lines; empty if there is none."""

    @property
    def count(self) -> int:
        """All ranks of the learner."""
        return sum(part.count for part in self.ranks)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """The machines other than rank 0's on which actors run."""
        places = dict.fromkeys(place.machine for place in self.actors)
        return tuple(name for name in places if name != self.machines[0].name)


def place(
    requested: RequestedPlaces,
    machines: Sequence[Machine],
    estimate: Estimate | None = None,
    *,
    force: bool = False,
) -> Topology:
    """Places what is requested on `machines`. Raises UserError, with the arithmetic, for what does
    not fit; with `force` only for what has no place."""
    ranks = place_ranks(requested, machines)
    gpu_sets = _gpu_sets(requested, machines, ranks)
    if not gpu_sets:
        names = _slots(requested, machines, ranks)
        chosen = [GpuSet(names[index % len(names)]) for index in range(requested.actors)]
        memory = SharedMemory()
    else:
        chosen = [gpu_sets[index % len(gpu_sets)] for index in range(requested.actors)]
        trained = {(part.machine, gpu) for part in ranks for gpu in part.gpus}
        memory = share_memory(requested, machines, trained, Counter(chosen), estimate, force=force)
    engines = Counter(each.machine for each in chosen)
    threads = _actor_threads(requested, machines, ranks, engines)
    return Topology(
        machines=tuple(machines),
        device=requested.device,
        ranks=ranks,
        actors=tuple(
            ActorPlace(each.machine, each.gpus, memory.shares.get(each), threads[each.machine])
            for each in chosen
        ),
        threads=_rank_threads(requested, machines, ranks, engines),
        memory=memory.lines,
    )


def place_ranks(requested: RequestedPlaces, machines: Sequence[Machine]) -> tuple[Ranks, ...]:
    """The machines and GPUs of the learner's ranks. Raises UserError if there are too few."""
    on_gpus = requested.device == "gpu"
    rooms = [len(m.gpus) if on_gpus else m.slots or requested.ranks for m in machines]
    if requested.machines is None:
        counts, left = [], requested.ranks
        for room in rooms:
            counts.append(min(room, left))
            left -= counts[-1]
    else:
        each = requested.ranks // requested.machines
        counts = [min(each, room) for room in rooms[: requested.machines]]
        left = requested.ranks - sum(counts)
    if left:
        raise UserError(
            f"--learner {requested.learner}: {_too_few(requested, machines, sum(rooms))}"
        )
    return tuple(
        Ranks(machine.name, count, machine.gpus[:count] if on_gpus else ())
        for machine, count in zip(machines, counts, strict=False)
        if count
    )


def _too_few(requested: RequestedPlaces, machines: Sequence[Machine], room: int) -> str:
    kind = "GPUs" if requested.device == "gpu" else "slots"
    if len(machines) == 1:
        have = f"this machine has {room} {kind}"
    else:
        have = f"{len(machines)} machines have {room} {kind}"
    if requested.machines is not None and requested.machines > len(machines):
        have += f"; {requested.machines} machines need --hostfile"
    return f"{have}; use --learner " + (f"{room}{requested.device}" if room else "1cpu")


def _gpu_sets(
    requested: RequestedPlaces, machines: Sequence[Machine], ranks: Sequence[Ranks]
) -> list[GpuSet]:
    """The places of actors on GPUs, in turn. Raises UserError if there are GPUs, but no place."""
    if not any(machine.gpus for machine in machines):
        if requested.actor_gpus > 1:
            raise UserError("--actor-gpus: these machines have no GPUs; leave it out")
        return []
    used = {part.machine: part.gpus for part in ranks}
    free = [(m.name, [g for g in m.gpus if g not in used.get(m.name, ())]) for m in machines]
    for gpus in (free, [(m.name, list(m.gpus)) for m in machines]):
        size = requested.actor_gpus
        found = [
            GpuSet(name, tuple(each[at : at + size]))
            for name, each in gpus
            for at in range(0, len(each) - size + 1, size)
        ]
        if found:
            return found
    most = max(len(machine.gpus) for machine in machines)
    raise UserError(
        f"--actor-gpus {requested.actor_gpus}: no machine has more than {most} GPUs; give at most "
        f"{most}"
    )


def _slots(
    requested: RequestedPlaces, machines: Sequence[Machine], ranks: Sequence[Ranks]
) -> list[str]:
    """The machines of actors without GPUs, in turn: one name for each slot that the ranks leave, or
    every machine."""
    used = {part.machine: part.count for part in ranks} if requested.device == "cpu" else {}
    left = [m.name for m in machines for _ in range((m.slots or 0) - used.get(m.name, 0))]
    return left or [machine.name for machine in machines]


def _rank_threads(
    requested: RequestedPlaces,
    machines: Sequence[Machine],
    ranks: Sequence[Ranks],
    engines: Counter[str],
) -> int | None:
    """OpenMP threads of each rank, None if the cores are not known.

    On CPUs a rank gets all cores of its machine. Actors use them too, but such a run waits for its
    steps, and waiting threads sleep. On GPUs a rank gets its share of the cores."""
    found = []
    for machine, count in ((_named(part.machine, machines), part.count) for part in ranks):
        if machine.cores is None:
            return None
        if requested.device == "gpu":
            found.append(_share(machine.cores, count + engines[machine.name]))
        else:
            found.append(max(1, machine.cores // count))
    return min(found)


def _actor_threads(
    requested: RequestedPlaces,
    machines: Sequence[Machine],
    ranks: Sequence[Ranks],
    engines: Counter[str],
) -> dict[str, int | None]:
    """OpenMP threads of an actor by its machine, None if the cores are not known.

    It is the actor's share of the machine's cores, or without any GPUs of those of all machines."""
    trained = {part.machine: part.count for part in ranks}
    if requested.device == "cpu" and not any(machine.gpus for machine in machines):
        cores = sum(machine.cores or 1 for machine in machines)
        return dict.fromkeys(engines, max(1, cores // (requested.actors + requested.ranks)))
    found = dict[str, int | None]()
    for machine in machines:
        count = engines[machine.name] + trained.get(machine.name, 0)
        found[machine.name] = machine.cores and _share(machine.cores, max(count, 1))
    return found


def _share(cores: int, processes: int) -> int:
    return max(1, min(cores // processes, MOST_THREADS))


def _named(name: str, machines: Sequence[Machine]) -> Machine:
    return next(machine for machine in machines if machine.name == name)
