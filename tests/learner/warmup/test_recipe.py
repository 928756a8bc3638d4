"""The recipe of a warm start, and its record."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from envs import registry
from envs.base import Skill
from envs.builtin.policy import builtin_policy
from learner.warmup import warmup
from learner.warmup.cli import warmup_command
from learner.warmup.recipe import PRETRAINED_LR, RECORD, TINY_LR, TINY_STEPS, Recipe, warmed_for
from r3l.errors import UserError


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
        earlier_reasoning="keep",
    )
    given = []
    monkeypatch.setattr(warmup, "warmup", lambda recipe, out: given.append((recipe, out)))
    words = recipe.command(tmp_path / "out").split()
    assert words[:2] == ["r3l-learner", "warmup"]
    done = CliRunner().invoke(warmup_command, words[2:], catch_exceptions=False)
    assert done.exit_code == 0 and given == [(recipe, tmp_path / "out")]


def test_a_folder_tells_the_world_it_was_warmed_up_for(tmp_path: Path) -> None:
    recipe = Recipe(("workshop",), options={"words": 6, "tools": 8}, withheld=5, certainty=0.5)
    recipe = recipe.resolved()
    record = {**recipe.record(tmp_path), "quality": {"workshop": {"told": 0.97}}}
    (tmp_path / RECORD).write_text(json.dumps(record))
    ((env, options, skill, quality, steps),) = warmed_for(tmp_path)
    assert (env, quality, steps) == ("workshop", {"told": 0.97}, TINY_STEPS)
    assert skill == Skill(withheld=5, waste=0.03, certainty=0.5)
    same = {"tools": 8, "words": 6, "stations": 5, "steps": None}
    assert options == registry.all_options("workshop", same)
    assert options != registry.all_options("workshop", {"words": 6})
    (shipped,) = warmed_for(builtin_policy())
    assert shipped[:2] == ("workshop", registry.all_options("workshop", {}))


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"skill": {}, "worlds": [{}]}'])
def test_a_folder_without_a_whole_record_is_refused_in_one_line(tmp_path: Path, text) -> None:
    if text is not None:
        (tmp_path / RECORD).write_text(text)
    with pytest.raises(UserError, match=r"warmup\.json: not a record of a warm start") as refused:
        warmed_for(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_model_made_by_others_gets_a_lower_rate_than_the_tiny_policy(tmp_path: Path) -> None:
    other = Recipe(("keys",), str(tmp_path))
    assert other.pretrained and other.resolved().lr == PRETRAINED_LR
    assert replace(other, lora=8).resolved().lr == 10 * PRETRAINED_LR
    assert replace(other, lr=1e-4, steps=9).resolved() == replace(other, lr=1e-4, steps=9)
    assert other.resolved().warning() == "" == replace(other, lora=8).resolved().warning()
    assert replace(other, lr=3e-3).warning().startswith("--lr 0.003: 150 times the usual rate")
    for own in (Recipe(("keys",)), Recipe(("keys",), "builtin")):
        assert not own.pretrained and own.resolved().lr == TINY_LR
        assert not own.resolved().warning()


def test_a_model_made_by_others_keeps_its_low_rate_in_a_second_warm_start(tmp_path: Path) -> None:
    first = Recipe(("keys",), str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    taught = tmp_path / "taught"
    taught.mkdir()
    (taught / RECORD).write_text(json.dumps(first.resolved().record(taught)))
    second = Recipe(("keys",), str(taught))
    assert second.pretrained and second.resolved().lr == PRETRAINED_LR
