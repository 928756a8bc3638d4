"""The placement of a run's processes: machines and GPUs, shares of GPU memory, CPU threads.

Ranks take the first GPUs. Actors take the GPUs that are left, or if none is, share those of the
ranks; they take turns. A GPU's memory goes to its rank as estimated and to its actors in equal
shares. No function here reads anything but its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launch.topology.machines import Machine
from launch.topology.memory_estimate import Estimate, arithmetic, total
from launch.topology.wanted import Wanted
from r3l.errors import UserError

USABLE = 0.95  # of a GPU's memory; the rest is the driver's, and what fragments
MOST = 0.9  # of a GPU's memory for one engine, vLLM's own default
MOST_THREADS = 16  # of a process whose work is on a GPU
PARALLEL = (2, 4, 8)  # GPUs of an actor that a plan may be mended with


class DoesNotFit(UserError):
    """A placement for which the machines, or the memory of their GPUs, are too small."""


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
    """The estimate of GPU memory as lines for people; empty if there is none."""

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
    wanted: Wanted,
    machines: Sequence[Machine],
    estimate: Estimate | None = None,
    *,
    force: bool = False,
) -> Topology:
    """The placement of what is wanted on `machines`. Raises UserError, with the arithmetic and the
    nearest plan that fits, for what does not fit; with `force` only for what has no place."""
    try:
        return _place(wanted, machines, estimate, force=force)
    except DoesNotFit as error:
        raise UserError(f"{error}; {nearest(wanted, machines, estimate)}") from None


def nearest(wanted: Wanted, machines: Sequence[Machine], estimate: Estimate | None) -> str:
    """The plan with the fewest changes that fits, as advice: another learner, then wider actors,
    then as many actors as fit, then both; offloading comes last, since it slows every step down."""
    wider = [gpus for gpus in PARALLEL if gpus > wanted.actor_gpus]
    for learners in _learners(estimate):
        for most in (wanted.actors, wanted.actors - 1):
            for gpus in (wanted.actor_gpus, *wider):
                found = [
                    (_most_actors(replace(wanted, actors=most, actor_gpus=gpus), machines, needs),
                     settings)
                    for settings, needs in learners
                ]  # fmt: skip
                count = max(count for count, _ in found)
                if count and (most < wanted.actors or count == most):
                    settings = next(settings for each, settings in found if each == count)
                    changes = _changes(wanted, count, gpus, settings)
                    return f"the nearest plan that fits: {changes}"
    return "no plan fits these machines: take more or larger GPUs, or a smaller model"


def _learners(estimate: Estimate | None) -> Iterator[list[tuple[str, Estimate | None]]]:
    """Settings of the learner to try, as text and as what they need; those that offload apart."""
    if estimate is None:
        yield [("", None)]
        return
    stage = estimate.learner.zero_stage
    steps: list[dict[str, Any]] = [{"zero_stage": higher} for higher in (1, 2, 3) if higher > stage]
    if not estimate.learner.gradient_checkpointing:
        steps += [step | {"gradient_checkpointing": True} for step in ({}, *steps)]
    yield [("", estimate), *((_settings(step), estimate.with_learner(**step)) for step in steps)]
    if estimate.learner.offload == "none":
        step = {"zero_stage": 3, "gradient_checkpointing": True, "offload": "optimizer"}
        yield [(_settings(step), estimate.with_learner(**step))]


def _most_actors(wanted: Wanted, machines: Sequence[Machine], estimate: Estimate | None) -> int:
    """How many actors fit, up to those that are wanted; where many fit, fewer do."""
    low, high = 0, wanted.actors
    while low < high:
        middle = (low + high + 1) // 2
        try:
            _place(replace(wanted, actors=middle), machines, estimate)
            low = middle
        except UserError:
            high = middle - 1
    return low


def _changes(wanted: Wanted, actors: int, gpus: int, settings: str) -> str:
    """What a plan changes, as options."""
    options = [f"--actors {actors}"] if actors != wanted.actors else []
    options += [f"--actor-gpus {gpus}"] if gpus != wanted.actor_gpus else []
    return " ".join([*options, settings]).strip()


def _settings(learner: dict[str, Any]) -> str:
    return " ".join(f"learner.{key}={str(value).lower()}" for key, value in learner.items())


def _place(
    wanted: Wanted,
    machines: Sequence[Machine],
    estimate: Estimate | None,
    *,
    force: bool = False,
) -> Topology:
    ranks = place_ranks(wanted, machines)
    groups = _groups(wanted, machines, ranks)
    if not groups:
        names = _slots(wanted, machines, ranks)
        chosen_names = [names[index % len(names)] for index in range(wanted.actors)]
        there = Counter(chosen_names)
        own = _actor_threads(wanted, machines, ranks, there)
        places = tuple(ActorPlace(name, threads=own[name]) for name in chosen_names)
        threads = _rank_threads(wanted, machines, ranks, there)
        return Topology(tuple(machines), wanted.device, ranks, places, threads)
    limit = wanted.actors_per_gpu or -(-wanted.actors // len(groups))
    if wanted.actors > limit * len(groups):
        raise DoesNotFit(
            f"--actors {wanted.actors}: {len(groups)} places of {wanted.actor_gpus} GPUs hold "
            f"{limit * len(groups)} with --actors-per-gpu {limit}"
        )
    chosen = [groups[index % len(groups)] for index in range(wanted.actors)]
    shares, memory = _shares(wanted, machines, ranks, Counter(chosen), estimate, force=force)
    there = Counter(name for name, _ in chosen)
    own = _actor_threads(wanted, machines, ranks, there)
    places = tuple(ActorPlace(name, gpus, shares[name, gpus], own[name]) for name, gpus in chosen)
    threads = _rank_threads(wanted, machines, ranks, there)
    return Topology(tuple(machines), wanted.device, ranks, places, threads, memory)


def place_ranks(wanted: Wanted, machines: Sequence[Machine]) -> tuple[Ranks, ...]:
    """The machines and GPUs of the learner's ranks. Raises UserError if there are too few."""
    on_gpus = wanted.device == "gpu"
    rooms = [len(m.gpus) if on_gpus else m.slots or wanted.ranks for m in machines]
    if wanted.machines is None:
        counts, left = [], wanted.ranks
        for room in rooms:
            counts.append(min(room, left))
            left -= counts[-1]
    else:
        each = wanted.ranks // wanted.machines
        counts = [min(each, room) for room in rooms[: wanted.machines]]
        left = wanted.ranks - sum(counts)
    if left:
        raise UserError(f"--learner {wanted.learner}: {_too_few(wanted, machines, sum(rooms))}")
    return tuple(
        Ranks(machine.name, count, machine.gpus[:count] if on_gpus else ())
        for machine, count in zip(machines, counts, strict=False)
        if count
    )


def _too_few(wanted: Wanted, machines: Sequence[Machine], room: int) -> str:
    kind = "GPUs" if wanted.device == "gpu" else "slots"
    if len(machines) == 1:
        have = f"this machine has {room} {kind}"
    else:
        have = f"{len(machines)} machines have {room} {kind}"
    if wanted.machines is not None and wanted.machines > len(machines):
        have += f"; {wanted.machines} machines need --hostfile"
    return f"{have}; use --learner " + (f"{room}{wanted.device}" if room else "1cpu")


Group = tuple[str, tuple[str, ...]]
"""A machine, and the GPUs of one actor on it."""


def _groups(wanted: Wanted, machines: Sequence[Machine], ranks: Sequence[Ranks]) -> list[Group]:
    """The places of actors on GPUs, in turn. Raises UserError if there are GPUs, but no place."""
    if not any(machine.gpus for machine in machines):
        if wanted.actor_gpus > 1 or wanted.actors_per_gpu is not None:
            option = "--actor-gpus" if wanted.actor_gpus > 1 else "--actors-per-gpu"
            raise UserError(f"{option}: these machines have no GPUs; leave it out")
        return []
    used = {part.machine: part.gpus for part in ranks}
    free = [(m.name, [g for g in m.gpus if g not in used.get(m.name, ())]) for m in machines]
    for gpus in (free, [(m.name, list(m.gpus)) for m in machines]):
        size = wanted.actor_gpus
        groups = [
            (name, tuple(each[at : at + size]))
            for name, each in gpus
            for at in range(0, len(each) - size + 1, size)
        ]
        if groups:
            return groups
    most = max(len(machine.gpus) for machine in machines)
    raise UserError(
        f"--actor-gpus {wanted.actor_gpus}: no machine has more than {most} GPUs; give at most "
        f"{most}"
    )


def _slots(wanted: Wanted, machines: Sequence[Machine], ranks: Sequence[Ranks]) -> list[str]:
    """The machines of actors without GPUs, in turn: one name for each slot that the ranks leave, or
    every machine."""
    used = {part.machine: part.count for part in ranks} if wanted.device == "cpu" else {}
    left = [m.name for m in machines for _ in range((m.slots or 0) - used.get(m.name, 0))]
    return left or [machine.name for machine in machines]


def _rank_threads(
    wanted: Wanted, machines: Sequence[Machine], ranks: Sequence[Ranks], engines: Counter[str]
) -> int | None:
    """OpenMP threads of each rank, None if the cores are not known. On CPUs all cores of its
    machine, though actors use them too: steps are what such a run waits for, and waiting threads
    sleep. On GPUs its share of them."""
    found = []
    for machine, count in ((_named(part.machine, machines), part.count) for part in ranks):
        if machine.cores is None:
            return None
        if wanted.device == "gpu":
            found.append(_share(machine.cores, count + engines[machine.name]))
        else:
            found.append(max(1, machine.cores // count))
    return min(found)


def _actor_threads(
    wanted: Wanted, machines: Sequence[Machine], ranks: Sequence[Ranks], engines: Counter[str]
) -> dict[str, int | None]:
    """OpenMP threads of an actor by its machine, None if the cores are not known: its share of
    them; where neither learner nor actors have GPUs, of those of all machines."""
    beside = {part.machine: part.count for part in ranks}
    if wanted.device == "cpu" and not any(machine.gpus for machine in machines):
        cores = sum(machine.cores or 1 for machine in machines)
        return dict.fromkeys(engines, max(1, cores // (wanted.actors + wanted.ranks)))
    found = dict[str, int | None]()
    for machine in machines:
        count = engines[machine.name] + beside.get(machine.name, 0)
        found[machine.name] = machine.cores and _share(machine.cores, max(count, 1))
    return found


def _share(cores: int, processes: int) -> int:
    return max(1, min(cores // processes, MOST_THREADS))


def _named(name: str, machines: Sequence[Machine]) -> Machine:
    return next(machine for machine in machines if machine.name == name)


def _shares(
    wanted: Wanted,
    machines: Sequence[Machine],
    ranks: Sequence[Ranks],
    engines: Counter[Group],
    estimate: Estimate | None,
    *,
    force: bool,
) -> tuple[dict[Group, float | None], tuple[str, ...]]:
    """(the share of memory that each engine on a group of GPUs gets, the estimate as lines).
    `engines`: how many there are on each. Raises DoesNotFit, unless `force`, if an engine or rank
    does not fit, and UserError if the memory to be shared is not known."""
    memory = {machine.name: machine.gpu_gib for machine in machines}
    trained = {(part.machine, gpu) for part in ranks for gpu in part.gpus}
    given = estimate.actor.engine.get("gpu_memory_utilization") if estimate else None
    shares: dict[Group, float | None] = {}
    lines: dict[str, None] = {}
    rank = estimate.learner_parts(wanted.ranks) if estimate and trained else {}
    for machine, _ in sorted(trained) if rank and not force else ():
        _check_rank(wanted, rank, memory[machine])
    if rank:
        lines[f"each rank: {arithmetic(rank)}"] = None
    for group, count in engines.items():
        shared = any((group[0], gpu) in trained for gpu in group[1])
        gib, beside = memory[group[0]], total(rank) if shared else 0.0
        if given is not None or (count == 1 and not shared):
            shares[group] = None
        elif gib is None or (shared and not rank):
            what = "the memory of the GPUs" if gib is None else "what the model needs"
            raise UserError(
                f"--actors {wanted.actors}: several processes share a GPU, and {what} is not "
                "known; set actor.engine.gpu_memory_utilization"
            )
        else:
            left = max(USABLE * gib - beside, gib / 2 if force else 0.0)
            shares[group] = int(100 * min(MOST, left / count / gib)) / 100
        if estimate is not None and gib is not None:
            share = shares[group]
            takes = given if given is not None else MOST if share is None else share
            engine = Engines(count, float(takes) * gib, gib, beside)
            lines[_engine(wanted, estimate, engine, force=force)] = None
    return shares, tuple(lines)


@dataclass(frozen=True)
class Engines:
    """The `count` engines on one GPU of `of_gib`: each takes `gib`, beside a rank of `rank_gib`."""

    count: int
    gib: float
    of_gib: float
    rank_gib: float


def _check_rank(wanted: Wanted, parts: dict[str, float], gib: float | None) -> None:
    if gib is not None and total(parts) > USABLE * gib:
        raise DoesNotFit(
            f"--learner {wanted.learner}: a rank needs {arithmetic(parts)}, a GPU has "
            f"{USABLE:.0%} of {gib:.0f} GiB"
        )


def _engine(wanted: Wanted, estimate: Estimate, engines: Engines, *, force: bool) -> str:
    """What an engine needs and gets, as a line. Raises DoesNotFit, unless `force`."""
    gpus, wants = wanted.actor_gpus, estimate.actor.concurrent_requests
    least = estimate.actor_parts(gpus, 1)
    beside = f" beside a rank of {engines.rank_gib:.1f} GiB" if engines.rank_gib else ""
    gets = (
        f"{engines.count} on each GPU of {engines.of_gib:.0f} GiB{beside} get {engines.gib:.1f} GiB"
    )
    used = engines.count * engines.gib + engines.rank_gib
    if not force and (total(least) > engines.gib or used > USABLE * engines.of_gib + 0.01):
        raise DoesNotFit(
            f"--actors {wanted.actors}: an actor needs {arithmetic(least)} for one request, {gets}"
        )
    held = min(wants, estimate.requests_held(gpus, engines.gib))
    return (
        f"each actor: {arithmetic(estimate.actor_parts(gpus, held))} for {held} of {wants} "
        f"requests of {estimate.actor.max_model_len} tokens; {gets}"
    )
