"""Many actors on one screen: counts, and the worst few by name. Snapshots made by hand."""

import pytest

from launch.inspection.doctor import findings
from launch.inspection.many_actors import MANY, SAMPLE, WORST, is_many, such_as, worst
from launch.inspection.snapshot import ActorState, Snapshot
from launch.inspection.status import lines
from tests.launch.inspection.snapshots import buffer, healthy, process

SCREEN = 40  # lines


def many(count: int = 64, **changes: object) -> Snapshot:
    """A run of so many actors. Its last one is stopped, the two before it are silent, the four
    before those have old weights, and actor-0 has never contacted the buffer."""
    states = {count - 1: "stopped"}
    processes = [process("buffer", 11), process("learner", 12)]
    processes += [process(f"actor-{n}", 100 + n, states.get(n, "sleeping")) for n in range(count)]
    actors = [
        ActorState(
            f"actor-{n}.ab", f"actor-{n}",
            seen_ago_s=90.0 + n if count - 3 <= n < count - 1 else 0.4,
            version=3 if count - 7 <= n < count - 3 else 12,
            requests=0 if n < 40 else 30, idle_share=0.9 if n < 40 else 0.1,
        )
        for n in range(1, count)
    ]  # fmt: skip
    return healthy(**{"processes": processes, "actors": actors} | changes)


def test_many_actors_are_counted_and_the_worst_are_named() -> None:
    shown = [*lines(many())]
    assert len(shown) < SCREEN
    text = "\n".join(shown)
    assert "64 actors: 63 sleeping, 1 stopped; memory 6,400 MiB, the largest 100 MiB" in text
    assert "  720 requests; weights: 59 at v12, 4 at v3 (9 behind); idle 90% (median)" in text
    assert "  1 have not contacted the buffer" in text and "heard 152.0 s ago at the latest" in text
    rows = [line.split()[0] for line in shown if line.startswith("actor-")]
    assert rows[:2] == ["actor-63", "actor-0"] and len(rows) == WORST
    assert "and 59 other actors; --json lists all" in text
    (waits,) = [line for line in shown if "for a lease" in line]
    assert waits.startswith("  39 of 63 actors wait (actor-1, actor-2, actor-3 and 36 more) for a ")


def test_up_to_sixteen_actors_have_a_line_each() -> None:
    shown = [*lines(many(MANY))]
    assert sum(line.startswith("actor-") for line in shown) == MANY
    assert sum("waits for a lease" in line for line in shown) == MANY - 1
    assert is_many([None] * (MANY + 1)) and not is_many([None] * MANY)


def test_a_thousand_actors_fit_on_a_screen_even_if_all_are_in_trouble() -> None:
    bad = many(1000)
    for each in bad.processes[2:]:
        each.state = "stopped"
    for version, actor in enumerate(bad.actors):
        actor.version, actor.seen_ago_s = -version, 100.0 + version
    bad.errors = {f"actor-{n}": ["ValueError: x"] * 3 for n in range(1000)} | {"buffer": ["E: y"]}
    shown = [*lines(bad)]
    assert len(shown) < SCREEN and "  buffer: E: y" in shown
    assert "  and 993 other logs; --json lists all" in shown
    found = findings(bad)
    assert len(found) == 3 and all(one.problem for one in found)
    said = " | ".join(one.what for one in found)
    assert "each of 1000 processes (actor-0, actor-1, actor-2 and 997 more) is stopped" in said
    assert "each of 999 actors (actor-999, actor-998, actor-997 and 996 more) has sent" in said
    assert " nothing for 1.7 min or more" in said and "has weights v0 or older, the lea" in said


def test_a_few_of_many_actors_are_findings_of_their_own() -> None:
    said = [one.what for one in findings(many())]
    assert sum(line.startswith("actor-") and "sent nothing" in line for line in said) == 2
    assert sum("each of 4 actors" in line for line in said) == 1
    assert "actor-63 (process 163) is stopped" in said


def test_clients_that_the_buffer_had_no_place_for_are_a_problem() -> None:
    refused = {"too_many_connections": 7}
    (found,) = findings(healthy(buffer=buffer(refused=refused, full_ago_s=90.0)))
    assert found.problem and "no place for a client 1.5 min ago, and 7 times" in found.what
    assert "ulimit -n" in found.remedy


@pytest.mark.parametrize("since", [{}, {"full_ago_s": 301.0}])
def test_that_there_was_no_place_is_no_problem_once_nobody_waits_for_one(since) -> None:
    assert findings(healthy(buffer=buffer(refused={"too_many_connections": 7}, **since))) == []


def test_names_are_a_sample() -> None:
    assert such_as(["a", "b", "c"]) == "a, b, c" and SAMPLE == 3
    assert such_as(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert [each.name for each in worst(many(), many().processes[2:])][:2] == [
        "actor-63",
        "actor-0",
    ]
