"""Assigns machines, GPUs, GPU memory shares and CPU threads to a run's processes.

Ranks get the first GPUs. Actors get the remaining GPUs in turn. If no machine has enough remaining
GPUs for one actor, actors share all GPUs. The functions here read only their arguments.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.topology.gpu_memory import MemoryEstimate, share_memory
from launch.topology.machines import ActorPlace, Machine, RequestedPlaces
from r3l.errors import UserError
from r3l.run.config import RunConfig

MOST_THREADS = 16  # of a process whose work is on a GPU


@dataclass(frozen=True)
class Ranks:
    """The ranks of the learner on one machine."""

    machine: str
    count: int
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Topology:
    """The places of all processes. The buffer and rank 0 run on the first machine. `threads`:
    OpenMP threads per rank."""

    machines: tuple[Machine, ...]
    device: str
    ranks: tuple[Ranks, ...]
    actors: tuple[ActorPlace, ...]
    threads: int | None = None
    memory: tuple[str, ...] = ()
    """The estimate of GPU memory as lines; empty if there is none."""

    @property
    def count(self) -> int:
        """The number of ranks."""
        return sum(local.count for local in self.ranks)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Names the machines with actors, except rank 0's machine."""
        places = dict.fromkeys(place.machine for place in self.actors)
        return tuple(name for name in places if name != self.machines[0].name)


@dataclass(frozen=True)
class Plan:
    """Holds the settings, folder, places and addresses for starting a run.

    `buffer_bind`, `weights_bind`: addresses of the services. `keys`: folder of all keys, None if
    there are none. `changed`: one line for each setting that a resumed run changes. `notes`:
    warnings.
    """

    config: RunConfig
    run: Path
    topology: Topology
    buffer_bind: str
    weights_bind: str
    resume: bool
    keys: Path | None = None
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def actors(self) -> int:
        return len(self.topology.actors)


def place(
    requested: RequestedPlaces,
    machines: Sequence[Machine],
    estimate: MemoryEstimate | None = None,
    *,
    force: bool = False,
) -> Topology:
    """Places the requested processes on `machines`.

    Raises UserError if there are too few devices, or if memory is too small and `force` is not set.
    """
    ranks = place_ranks(requested, machines)
    places = _actor_places(requested, machines, ranks)
    chosen = [places[index % len(places)] for index in range(requested.actors)]
    memory: tuple[str, ...] = ()
    shares: dict[ActorPlace, float | None] = {}
    if places[0].gpus:
        trained = {(local.machine, gpu) for local in ranks for gpu in local.gpus}
        engines = Counter(chosen)
        shares, memory = share_memory(requested, machines, trained, engines, estimate, force=force)
    each_machine = Counter(each.machine for each in chosen)
    rank_threads, actor_threads = _threads(requested, machines, ranks, each_machine)
    actors = (
        replace(each, share=shares.get(each), threads=actor_threads[each.machine])
        for each in chosen
    )
    return Topology(tuple(machines), requested.device, ranks, tuple(actors), rank_threads, memory)


def place_ranks(requested: RequestedPlaces, machines: Sequence[Machine]) -> tuple[Ranks, ...]:
    """Places the learner's ranks. Raises UserError if there are too few devices."""
    on_gpus = requested.device == "gpu"
    rooms = [len(m.gpus) if on_gpus else requested.ranks for m in machines]
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
        raise UserError(f"--learner {requested.learner}: {_too_few(requested, machines)}")
    return tuple(
        Ranks(machine.name, count, machine.gpus[:count] if on_gpus else ())
        for machine, count in zip(machines, counts, strict=False)
        if count
    )


def _too_few(requested: RequestedPlaces, machines: Sequence[Machine]) -> str:
    count, gpus = len(machines), sum(len(machine.gpus) for machine in machines)
    have = f"this machine has {gpus} GPUs" if count == 1 else f"{count} machines have {gpus} GPUs"
    if requested.machines is not None and requested.machines > count:
        have += f"; {requested.machines} machines need --cluster ray or slurm"
    return f"{have}; use --learner {gpus}gpu" if gpus else f"{have}; use --learner 1cpu"


def _actor_places(
    requested: RequestedPlaces, machines: Sequence[Machine], ranks: Sequence[Ranks]
) -> list[ActorPlace]:
    """Returns the possible places of an actor. Without GPUs, each place is a machine. Raises
    UserError if no machine has enough GPUs."""
    if not any(machine.gpus for machine in machines):
        if requested.actor_gpus > 1:
            raise UserError("--actor-gpus: these machines have no GPUs; leave it out")
        return [ActorPlace(machine.name) for machine in machines]
    used = {local.machine: local.gpus for local in ranks}
    free = [(m.name, [g for g in m.gpus if g not in used.get(m.name, ())]) for m in machines]
    for gpus in (free, [(m.name, list(m.gpus)) for m in machines]):
        size = requested.actor_gpus
        sets = [
            ActorPlace(name, tuple(each[at : at + size]))
            for name, each in gpus
            for at in range(0, len(each) - size + 1, size)
        ]
        if sets:
            return sets
    most = max(len(machine.gpus) for machine in machines)
    raise UserError(
        f"--actor-gpus {requested.actor_gpus}: no machine has more than {most} GPUs; give at most "
        f"{most}"
    )


def _threads(
    requested: RequestedPlaces,
    machines: Sequence[Machine],
    ranks: Sequence[Ranks],
    engines: Counter[str],
) -> tuple[int | None, dict[str, int | None]]:
    """Returns (OpenMP threads per rank, {machine: OpenMP threads per actor}).

    A number is None if the cores are not known. Each process gets an equal share of the cores of
    its machine, at most MOST_THREADS. Ranks on CPUs divide all cores of their machine among
    themselves. If no machine has GPUs, an actor gets an equal share of all machines' cores."""
    trained = {local.machine: local.count for local in ranks}
    cores = {machine.name: machine.cores for machine in machines}
    shares = {
        name: _share(count, engines[name] + trained.get(name, 0)) for name, count in cores.items()
    }
    on_ranks = shares
    if requested.device == "cpu":  # the run mostly waits for the ranks, and idle threads sleep
        on_ranks = {name: _share(cores[name], count, most=None) for name, count in trained.items()}
        if not any(machine.gpus for machine in machines):
            everywhere = sum(count or 1 for count in cores.values())
            processes = requested.actors + requested.ranks
            shares = dict.fromkeys(cores, max(1, everywhere // processes))
    known = [on_ranks[local.machine] for local in ranks]
    return (None if None in known else min(filter(None, known))), shares


def _share(cores: int | None, processes: int, *, most: int | None = MOST_THREADS) -> int | None:
    return cores and max(1, min(cores // max(1, processes), most or cores))
