"""What is evaluated once runs have ended, and what its lines hold."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from envs.registry import make
from lab.real_model import finals, rare
from lab.real_model.finals import SHARES, WARM
from lab.real_model.worlds import WORLDS, Warm
from lab.results.lines import append, read_lines
from r3l.run import config as configuration
from tests.r3l.fakes import ScriptedPolicy

RUN = {"kind": "run", "machine": "M", "world": "what", "seed": 1, "policy": 1, "warm_steps": 200,
       "options": "{}"}  # fmt: skip


def ended(folder: Path, *variants: str) -> Warm:
    """Runs that have lines, whose models are there but for that of GRPO."""
    warm = Warm(folder, folder / "rare.jsonl", "M")
    for variant in variants:
        append(warm.lines, RUN | {"variant": variant})
        run = rare.Wanted(1, WORLDS["what"], variant)
        if variant != "grpo":
            model = rare.folder_of(run, warm) / "model"
            model.mkdir(parents=True)
            (model / "config.json").write_text("{}")
    policy = warm.model(WORLDS["what"], 200, 1)
    policy.mkdir(parents=True)
    (policy / "config.json").write_text("{}")
    return warm


def test_ended_runs_and_their_warm_policy_are_evaluated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warm = ended(tmp_path, "r3l", "grpo")
    made: list[tuple[str, Any]] = []

    async def evaluated(config: Any, folder: Path, changed: Any) -> dict[str, Any]:
        made.append((folder.name, changed))
        return {"success": 0.5, "pass": 1.0, "greedy": 0.6}

    monkeypatch.setattr(finals, "evaluated", evaluated)
    runs = [*rare.wanted(["what"], ["r3l", "no_reflect", "grpo"], [1, 2])]
    finals.make(runs, warm)
    finals.make(runs, warm)
    assert made == [("what-warm-1", {"tools": 7}), ("what-r3l-1", {"tools": 7})]
    said = capsys.readouterr().err
    assert said.count("what grpo 1: ") == 2 and "so this policy has no final line" in said
    lines = [line for line in read_lines(warm.lines) if line["kind"] == "final"]
    assert [line["variant"] for line in lines] == [WARM, "r3l"]
    assert all(line["policy"] == 1 and line["options"] == "{}" for line in lines)


def test_in_the_changed_world_nine_of_twelve_items_need_another_tool() -> None:
    rules = [make("workshop", **options).rule for options in ({}, WORLDS["what"].changed or {})]
    assert sum(rules[0][item] != rules[1][item] for item in rules[0]) == 9
    assert WORLDS["lake"].changed is None and len(rules[0]) == 12


def test_a_dry_run_plays_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm = ended(tmp_path, "r3l")
    warm.dry_run = True
    finals.make([*rare.wanted(["what"], ["r3l"], [1])], warm)
    assert "what warm 1: " in capsys.readouterr().out and len(read_lines(warm.lines)) == 1


def test_a_policy_is_measured_sampled_greedy_and_in_a_changed_world_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ScriptedPolicy(lambda prompt: "use brush")
    config = configuration.load(WORLDS["what"].settings, ["model=builtin", "eval.tasks=2"])

    @asynccontextmanager
    async def engine(config: Any, log: Path) -> Any:
        yield policy

    monkeypatch.setattr(finals, "own_engine", engine)
    line = asyncio.run(finals.evaluated(config, tmp_path, {"tools": 7}))
    assert (line["success"], line["pass"], line["greedy"]) == (0.0, 0.0, 0.0)
    assert (line["tasks"], line["attempts"]) == (2, finals.ATTEMPTS)
    assert line["changed"].keys() == set(SHARES)
    heats = [params.temperature for params in policy.asked]
    first, greedy = heats.index(0.0), heats.count(0.0)
    assert heats[:first] == [1.0] * (greedy * finals.ATTEMPTS)
    assert heats[first : first + greedy] == [0.0] * greedy
    policy.asked.clear()
    again = asyncio.run(finals.evaluated(config, tmp_path, None))
    assert again == {name: line[name] for name in again} and "changed" not in again
    assert not policy.asked
