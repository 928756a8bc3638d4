"""What a run left behind, asked with `r3l-learner`."""

from pathlib import Path

import pytest

from learner.offline.cli import run_config
from r3l.config import dump, load
from r3l.errors import UserError


def test_the_settings_are_those_of_the_runs_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no config\.yaml there; give the folder of a run"):
        run_config(tmp_path)
    config = load(None, ["learner.steps=7"])
    (tmp_path / "config.yaml").write_text(dump(config))
    assert run_config(tmp_path) == config
