"""The command `r3l-buffer rehearse`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from buffer.cli import commands
from buffer.tools.recorded import Pace
from buffer.tools.rehearsal import Outcome
from buffer.tools.rehearse import pays
from r3l.records import GroupPlan, Task
from tests.buffer.fakes import Desk, finished, refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of eight steps of two groups."""
    desk = Desk(tmp_path / "buffer", max_staleness=0, lease_s=1e6)
    desk.add([Task(f"t/{number}", "t", number) for number in range(4)])
    for version in range(8):
        leased = [desk.lease("a", version, GroupPlan(2)).group_id for _ in range(2)]
        desk.now += 10
        for group in leased:
            desk.put(group, [finished(slot=n, version=version, reward=n) for n in range(2)])
        draw = desk.draw(2, version)
        desk.now += 3
        desk.commit(draw.draw_id, version + 1)
    desk.store.close()
    return desk.folder


def test_recorded_and_predicted_pace_are_printed_and_the_number_that_pays(folder: Path) -> None:
    command = ["rehearse", str(folder), "--actors", "1,2", "--max-staleness", "0"]
    more = ["--groups-per-step", "2", "--sampler", "uniform", "algorithm.group_size=2"]
    done = CliRunner().invoke(commands, [*command, *more], catch_exceptions=False)
    lines = done.output.splitlines()
    assert lines[0] == "recorded: 16 groups, 8 steps, 1 actors with 2 groups at a time"
    assert lines[2].split() == ["recorded", "13.00", "77%", "23%", "0.00"]
    assert lines[3].split()[:2] == ["1", "actors"] and lines[-1].startswith("1 actors pay: ")
    done = CliRunner().invoke(commands, [*command, *more, "--json"], catch_exceptions=False)
    first, second = json.loads(done.output)
    assert first["actors"] == 1 and first["step_s"] == pytest.approx(13, abs=0.3)
    assert second["actor_idle"] > first["actor_idle"]


def test_contradictions_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(["rehearse", str(folder), "--actors", "4,many"], "must be numbers from 1", capsys)
    refused(["rehearse", str(folder), "--sampler", "nosuch"], "nosuch", capsys)
    refused(["rehearse", str(folder.parent / "none")], "none", capsys)


def outcome(actors: int, step_s: float) -> Outcome:
    return Outcome(actors, Pace(step_s, 0.5, 0.1, 1.0), {})


def test_actors_pay_until_a_doubling_gains_less_than_a_tenth() -> None:
    found = [outcome(4, 10.0), outcome(8, 6.0), outcome(16, 5.7), outcome(32, 5.6)]
    assert pays(found).startswith("8 actors pay: 6 s a step")
