"""What is read of a policy that was warmed up."""

import json
from pathlib import Path

import pytest

from envs import registry
from envs.base import Skill
from lab.warmed import warmed_for
from learner.warmup.recipe import RECORD, TINY_STEPS, Recipe
from r3l.errors import UserError
from r3l.models.model_path import builtin_policy


def test_a_folder_tells_the_world_it_was_warmed_up_for(tmp_path: Path) -> None:
    recipe = Recipe(("workshop",), options={"words": 6, "tools": 8}, withheld=5, certainty=0.5)
    recipe = recipe.resolved()
    record = {**recipe.record(tmp_path), "quality": {"workshop": {"told": 0.97}}}
    (tmp_path / RECORD).write_text(json.dumps(record))
    ((env, options, skill, quality, steps, shown),) = warmed_for(tmp_path)
    assert shown == recipe.guidance_text == "advice"
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
    with pytest.raises(UserError, match=r"warmup\.json: not a record") as refused:
        warmed_for(tmp_path)
    assert "\n" not in str(refused.value)
