"""What a run leaves in its folder."""

from pathlib import Path

import pytest

from learner.run_files import settings_of
from r3l.config import dump, load
from r3l.errors import UserError


def test_the_settings_are_those_with_which_a_step_was_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.yaml there; give the folder of a run"):
        settings_of(tmp_path, 1)
    names = {"config": 3, "config.before-step-000005": 1, "config.before-step-000008": 2}
    for name, steps in names.items():
        config = load(None, [f"learner.steps={steps}"])
        (tmp_path / f"{name}.yaml").write_text(dump(config))
    found = [settings_of(tmp_path, step).learner.steps for step in (1, 4, 5, 7, 8, 20)]
    assert found == [1, 1, 2, 2, 3, 3]
