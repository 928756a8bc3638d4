"""The recipe of a warm-up, and its record."""

import json
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from launch.checks.presets import preset_file
from learner.warmup import warmup
from learner.warmup.cli import warmup_command
from learner.warmup.recipe import PRETRAINED_LR, RECORD, TINY_LR, Recipe
from r3l.run.config import load


def test_the_command_of_a_recipe_is_read_as_the_same_recipe(tmp_path: Path, monkeypatch) -> None:
    recipe = Recipe(
        ("workshop",),
        "builtin",
        {"stations": 3, "summary": "brief", "steps": None},
        steps=7,
        tokens_per_batch=64,
        lr=0.01,
        data=tmp_path / "own.jsonl",
        lora=4,
        seed=3,
        withheld=2,
        certainty=0.25,
        waste=0.1,
        guidance_text="advice",
        earlier_reasoning="keep",
    )
    given = []
    monkeypatch.setattr(warmup, "warmup", lambda recipe, out: given.append((recipe, out)))
    words = recipe.command(tmp_path / "out").split()
    assert words[:2] == ["r3l-learner", "warmup"]
    done = CliRunner().invoke(warmup_command, words[2:], catch_exceptions=False)
    assert done.exit_code == 0 and given == [(recipe, tmp_path / "out")]


def test_a_model_made_by_others_gets_a_lower_rate_than_the_tiny_policy(tmp_path: Path) -> None:
    other = Recipe(("keys",), str(tmp_path))
    assert other.pretrained and other.resolved().lr == PRETRAINED_LR
    assert replace(other, lora=8).resolved().lr == 10 * PRETRAINED_LR
    given = replace(other, lr=1e-4, steps=9, guidance_text="report")
    assert given.resolved() == given
    assert other.resolved().warning() == "" == replace(other, lora=8).resolved().warning()
    assert replace(other, lr=3e-3).warning().startswith("--lr 0.003: 150 times the usual rate")
    for own in (Recipe(("keys",)), Recipe(("keys",), "builtin")):
        assert not own.pretrained and own.resolved().lr == TINY_LR
        assert not own.resolved().warning()


def test_retries_are_taught_with_what_a_run_of_the_model_shows(tmp_path: Path) -> None:
    for model, text in ((None, "advice"), ("builtin", "advice"), (str(tmp_path), "report")):
        recipe = Recipe(("keys",), model).resolved()
        assert recipe.guidance_text == text and recipe.record(tmp_path)["guidance_text"] == text
    other = replace(recipe, guidance_text="advice")
    assert other.resolved().guidance_text == "advice"
    shown = [load(file).algorithm.guidance_text for file in (preset_file("demo"), None)]
    assert shown == ["advice", "report"], "with --preset demo, and without"


def test_a_model_made_by_others_keeps_its_low_rate_in_a_second_warm_up(tmp_path: Path) -> None:
    first = Recipe(("keys",), str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    taught = tmp_path / "taught"
    taught.mkdir()
    (taught / RECORD).write_text(json.dumps(first.resolved().record(taught)))
    second = Recipe(("keys",), str(taught))
    assert second.pretrained and second.resolved().lr == PRETRAINED_LR
