"""The recipe of a warm start."""

from pathlib import Path

from click.testing import CliRunner

from learner.warmup import warmup
from learner.warmup.cli import warmup_command
from learner.warmup.recipe import Recipe


def test_the_command_of_a_recipe_is_read_as_the_same_recipe(tmp_path: Path, monkeypatch) -> None:
    recipe = Recipe(
        ("keys", "workshop"),
        tmp_path / "start",
        steps=7,
        tokens_per_batch=64,
        lr=0.01,
        seed=3,
        withheld=2,
        earlier_reasoning="keep",
    )
    given = []
    monkeypatch.setattr(warmup, "warmup", lambda recipe, out: given.append((recipe, out)) or {})
    words = recipe.command(tmp_path / "out").split()
    assert words[:2] == ["r3l-learner", "warmup"]
    done = CliRunner().invoke(warmup_command, words[2:], catch_exceptions=False)
    assert done.exit_code == 0 and given == [(recipe, tmp_path / "out")]
