"""The cells: the worlds of the prediction, each with commands that warm its policy."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envs.registry import all_options
from lab.idealised import WORLDS
from lab.results.cells import BASES, CELLS, EASIEST, START_POLICY, setup_of
from r3l.errors import UserError


def test_every_world_of_the_prediction_has_a_cell_for_each_cost_of_a_reflection() -> None:
    cells = [cell for cell in CELLS.values() if cell.world is not None]
    assert len(cells) == 3 * len(WORLDS)
    for world, base in zip(WORLDS, BASES, strict=True):
        mine = [cell for cell in cells if cell.world == world]
        assert {cell.rho for cell in mine} == {2.4, 1.0, 0.3}
        assert {cell.base for cell in mine} == {base}
        assert {cell.options["stations"] for cell in mine} == {world.stations}
        for cell in mine:
            all_options("workshop", dict(cell.options))  # raises for one that does not exist


def test_every_policy_is_warmed_from_the_same_one(tmp_path: Path) -> None:
    command = CELLS["base-0.005-rho-1"].warmup(tmp_path / "out")
    assert command[command.index("--model") + 1] == str(START_POLICY)
    assert command[command.index("--withheld") + 1] == "10"
    assert EASIEST.warm(tmp_path) == {} and EASIEST.policy(tmp_path) == START_POLICY


def test_a_numbered_policy_has_its_own_seed_folder_and_setup(tmp_path: Path) -> None:
    cell = CELLS["base-0.005-rho-1"]
    second = replace(cell, number=2)
    command = second.warmup(tmp_path / "out")
    assert command[-2:] == ["--seed", "2"] and "--seed" not in cell.warmup(tmp_path / "out")
    assert (cell.folder, second.folder) == ("base-0.005-rho-1", "base-0.005-rho-1-policy-2")
    assert setup_of({"cell": cell.name}) == cell.setup() != second.setup()
    assert setup_of({"cell": cell.name, "policy": 2}) == second.setup()


def test_a_policy_of_another_world_is_refused(tmp_path: Path) -> None:
    cell = CELLS["base-0.005-rho-1"]
    with pytest.raises(UserError, match="r3l-learner warmup"):
        cell.policy(tmp_path)
    folder = tmp_path / cell.name
    folder.mkdir()
    world = {"env": "workshop", "options": all_options("workshop", dict(cell.options))}
    record = {
        "skill": {"withheld": cell.withheld, "waste": cell.waste},
        "quality": {},
        "worlds": [world],
        "steps": cell.warm_steps,
    }
    (folder / "warmup.json").write_text(json.dumps(record))
    assert cell.policy(tmp_path) == folder
    (folder / "warmup.json").write_text(json.dumps(record | {"steps": cell.warm_steps + 1}))
    with pytest.raises(UserError, match=r"another world .*delete"):
        cell.policy(tmp_path)
    world["options"]["stations"] = 2
    (folder / "warmup.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="another world"):
        cell.policy(tmp_path)
