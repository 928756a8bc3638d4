"""The line of a whole run, from the progress that a run writes."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from envs.registry import all_options
from lab.results.lines import APPENDIX, POLICIES, ROOT
from lab.results.statistics import Cost, cost
from lab.results.wall_clock import (
    EASY,
    GUIDED,
    PRESET,
    SCIENCEWORLD,
    SCIENCEWORLD_LONG,
    WORLD,
    System,
    _line,
    main,
)
from launch.checks.presets import preset_file
from r3l.errors import UserError
from r3l.settings import yaml_text


def test_seconds_begin_with_the_first_evaluation_and_tokens_add_up(tmp_path: Path) -> None:
    lines = [
        {"kind": "eval", "step": 0, "time": 100.0, "success": 0.1, "reward": 0.2},
        *(
            {"kind": "step", "step": n, "time": 100.0 + 3 * n}
            | {"learner/step_s": 1.0, "group/generated_tokens": 50.0, "group/success_base": n / 10}
            for n in range(1, 11)
        ),
        {"kind": "eval", "step": 10, "time": 140.0, "success": 0.9, "reward": 0.95},
    ]
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    line = _line(System(EASY, "r3l", 3), tmp_path)
    assert (line["cell"], line["variant"], line["seed"]) == (EASY, "r3l", 3)
    assert line["success"] == 0.9 and line["steps"] == 10
    assert (line["before"], line["before_reward"], line["reward"]) == (0.1, 0.2, 0.95)
    # the mean of steps 3 to 7 is 0.5
    assert cost(line, 0.5, "wall") == Cost(21.0, True)
    assert cost(line, 0.5, "tokens") == Cost(350.0, True)


def test_seconds_begin_with_the_first_step_if_the_evaluation_ends_after_it(tmp_path: Path) -> None:
    lines = [
        {"kind": "step", "step": 1, "time": 103.0, "learner/step_s": 2.0}
        | {"group/generated_tokens": 50.0},
        {"kind": "eval", "step": 0, "time": 110.0, "success": 0.1, "reward": 0.2},
    ]
    (tmp_path / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert _line(System(EASY, "r3l", 3), tmp_path)["curve"]["wall"] == [2.0]


def test_scienceworld_needs_its_warm_policy(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"scienceworld.*r3l-learner warmup"):
        System(SCIENCEWORLD, "grpo", 0).arguments(tmp_path)


def test_the_long_runs_of_scienceworld_differ_from_the_others_in_steps_alone() -> None:
    short, long = (System(cell, "r3l", 1) for cell in (SCIENCEWORLD, SCIENCEWORLD_LONG))
    assert {*long.settings()} - {*short.settings()} == {"learner.steps=45", "eval.every=45"}
    assert {*short.settings()} - {*long.settings()} == {"learner.steps=15", "eval.every=15"}
    assert short.setup() != long.setup()


@pytest.mark.parametrize("option", ["--cell", "--variant"])
def test_an_unknown_name_is_refused_before_anything_is_made(tmp_path: Path, option: str) -> None:
    found = CliRunner().invoke(main, [option, "nope", "--lines", str(tmp_path)])
    assert found.exit_code == 2 and f"{option} 'nope': unknown; there are " in found.output
    assert found.output.count("\n") == 1 and not list(tmp_path.iterdir())


def test_scienceworld_refuses_a_policy_of_another_world(tmp_path: Path) -> None:
    folder = tmp_path / SCIENCEWORLD
    folder.mkdir()
    tasks = ["find-*", "lifespan-*"]
    mine = {"tasks": tasks, "brief": True, "max_steps": 14, "heap_mib": 2048}
    options = all_options("scienceworld", mine)
    for env, other, fits in (
        (GUIDED, {}, True),
        (GUIDED, {"timeout_s": 300.0}, True),  # not of the world
        (GUIDED, {"tasks": ["find-*"]}, False),
        (GUIDED, {"brief": False}, False),
        ("workshop", {}, False),
    ):
        world = {"env": env, "options": options | other}
        record = {"skill": {"withheld": 4}, "quality": {}, "worlds": [world], "steps": 9}
        (folder / "warmup.json").write_text(json.dumps(record))
        run = System(SCIENCEWORLD, "grpo", 0)
        if fits:
            assert f"model={folder}" in run.arguments(tmp_path)
        else:
            with pytest.raises(UserError, match=r"another world.*brief=True"):
                run.arguments(tmp_path)


def test_the_page_makes_the_policy_of_scienceworld_where_and_as_it_is_looked_for() -> None:
    page = (APPENDIX / "scienceworld.md").read_text(encoding="utf-8")
    (command,) = re.findall(rf"^    r3l-learner (warmup --env {GUIDED} .*)$", page, re.MULTILINE)
    words = shlex.split(command)
    assert ROOT / words[words.index("--out") + 1] == POLICIES / SCIENCEWORLD
    dials = [words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--set"]
    given = {name: json.loads(value) for name, value in dials}
    preset = yaml_text.parse(preset_file(PRESET).read_text(), PRESET)["env"]["options"]
    assert {name: given.get(name) for name in WORLD} == {name: preset.get(name) for name in WORLD}
