"""Summarises many actors: how many are in each state, and which few are worst.

A run of up to MANY actors shows each in a line of its own.
"""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from launch.inspection.snapshot import ActorState, Process, Snapshot

MANY = 16  # processes of a kind that are shown one by one
WORST = 5  # of more processes, those that are named
SAMPLE = 3  # names in a sentence
MIB = 1 << 20


def is_many(processes: Sequence[object]) -> bool:
    """Whether there are so many processes that they are counted, not listed."""
    return len(processes) > MANY


def such_as(names: Sequence[str]) -> str:
    """Names a few of many: `actor-1, actor-2, actor-3 and 61 more`."""
    more = f" and {len(names) - SAMPLE} more" if len(names) > SAMPLE else ""
    return ", ".join(names[:SAMPLE]) + more


def summary(now: Snapshot, actors: Sequence[Process]) -> Iterator[str]:
    """Yields lines that summarise many actors on this machine: how many are in each state, and how
    many have each version of the weights."""
    memory = sum(process.memory_bytes for process in actors)
    most = max(process.memory_bytes for process in actors)
    yield (
        f"{len(actors)} actors: {_counted(process.state for process in actors)}; memory "
        f"{memory / MIB:,.0f} MiB, the largest {most / MIB:,.0f} MiB"
    )
    known = {actor.process: actor for actor in now.actors if actor.process}
    heard = [known[process.name] for process in actors if process.name in known]
    if heard:
        newest = now.buffer.stats.learner_version
        behind = Counter(max(0, newest - actor.version) for actor in heard)
        weights = ", ".join(
            f"{count} at v{newest - n}" + (f" ({n} behind)" if n else "")
            for n, count in sorted(behind.items())[:WORST]
        )
        weights += f", {len(behind) - WORST} older versions" if len(behind) > WORST else ""
        idle = statistics.median(actor.idle_share for actor in heard)
        yield (
            f"  {sum(actor.requests for actor in heard):,} requests; weights: {weights}; idle "
            f"{idle:.0%} (median); heard {max(actor.seen_ago_s for actor in heard):.1f} s ago at "
            "the latest"
        )
    if silent := len(actors) - len(heard):
        yield f"  {silent} have not contacted the buffer"


def worst(now: Snapshot, actors: Sequence[Process]) -> list[Process]:
    """Returns the few actors that a user should look at first: stopped and dead actors, actors that
    the buffer does not know, and actors that have been silent for long or have old weights."""
    known = {actor.process: actor for actor in now.actors if actor.process}
    newest = now.buffer.stats.learner_version

    def badness(process: Process) -> tuple[bool, bool, float]:
        halted = process.state in ("stopped", "tracing-stop", "zombie", "dead")
        actor = known.get(process.name)
        return halted, actor is None, _trouble(actor, newest, now) if actor else 0.0

    return sorted(actors, key=badness, reverse=True)[:WORST]


def _trouble(actor: ActorState, newest: int, now: Snapshot) -> float:
    """How bad an actor is: its silence as a share of its lease, plus its versions behind in units
    of η."""
    behind = max(0, newest - actor.version) / max(now.max_staleness, 1)
    return actor.seen_ago_s / now.lease_s + behind + 0.01 * actor.idle_share


def _counted(states: Iterator[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in Counter(states).most_common())
