"""Offline runs from stopped ones: what is made, and how the page shows it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.results import stopped_runs
from lab.results.cells import EASIEST
from lab.results.experiments import offline_setup
from lab.results.tables import offline


@pytest.mark.parametrize("option", ["--cell", "--variant"])
def test_an_unknown_name_is_refused_before_anything_is_made(tmp_path: Path, option: str) -> None:
    arguments = [option, "nope", "--lines", str(tmp_path), "--stores", str(tmp_path / "stores")]
    found = CliRunner().invoke(stopped_runs.main, arguments)
    assert found.exit_code == 2 and f"{option} 'nope': unknown; there are " in found.output
    assert found.output.count("\n") == 1 and not list(tmp_path.iterdir())


def line(variant: str, seed: int, before: float, after: float, lost_at: int) -> dict[str, object]:
    trust = {"ess": 0.5 + seed / 10, "kl": 0.1, "lost_at": lost_at}
    named = {"cell": EASIEST.name, "variant": variant, "seed": seed}
    named["setup"] = offline_setup(EASIEST, variant)
    return named | {"before": before, "after": after, "trust": trust}


def test_the_page_shows_gain_and_trust_of_every_variant() -> None:
    table = offline(
        [line("grpo", 0, 0.25, 0.5, -1), line("grpo", 1, 0.5, 0.75, 9), line("raft", 0, 0.5, 0, 3)]
    )
    grpo, raft = table.splitlines()[2:]
    assert "+0.250 (+0.250, +0.250) | 0.55 | 0.100 | 2 |" in grpo
    assert "| -0.500 | 0.50 | 0.100 | 1 |" in raft


def measured(step: int, ess: float, kl: float = 0.0, role: str = "") -> str:
    facts = {f"learner/behaviour_ess{role}": ess, f"learner/behaviour_kl{role}": kl}
    return json.dumps({"kind": "step", "step": step} | facts)


def test_trust_is_lost_from_the_first_of_three_steps_in_a_row_beyond_a_limit() -> None:
    values = [0.9, 0.2, 0.5, 0.29, 0.2, 0.1, 0.1, 0.9]
    lines = [measured(step, ess) for step, ess in enumerate(values, 1)]
    assert stopped_runs.trusted(lines) == {"ess": 0.9, "kl": 0.0, "lost_at": 4}
    for bad in (0.6, float("nan")):
        assert stopped_runs.trusted([measured(i, 0.9, bad) for i in (1, 2, 3)])["lost_at"] == 1
    base = [measured(i, 0.8, role="_base")[:-1] + ", " + measured(i, 0.01)[1:] for i in range(5)]
    assert stopped_runs.trusted(base) == {"ess": 0.8, "kl": 0.0, "lost_at": -1}


def test_runs_that_are_found_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / stopped_runs.FILE).write_text(json.dumps(line("grpo", 0, 0, 1, -1)) + "\n")
    made = []

    async def stop(*_: object) -> Path:
        return tmp_path

    def measure(cell: object, variant: str, seed: int, stopped: Path) -> dict[str, object]:
        made.append((variant, seed))
        return line(variant, seed, 0, 1, -1)

    monkeypatch.setattr(stopped_runs, "stop", stop)
    monkeypatch.setattr(stopped_runs, "measure", measure)
    arguments = ["--variant", "grpo", "--variant", "raft", "--seeds", "2", "--lines", str(tmp_path)]
    for _ in range(2):
        assert CliRunner().invoke(stopped_runs.main, arguments).exit_code == 0
    assert made == [("raft", 0), ("grpo", 1), ("raft", 1)]
