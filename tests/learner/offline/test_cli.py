"""What a run left behind, asked with `r3l-learner`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from buffer.storage import store
from buffer.storage.store import Store
from learner.cli import main
from r3l.config import dump, load


@pytest.mark.parametrize(
    "command", [["weights", "--version", "1", "--out", "out"], ["replay", "1"]]
)
def test_a_folder_that_is_no_run_is_named_in_one_line(tmp_path: Path, command: list[str]) -> None:
    verb, *rest = command
    done = CliRunner().invoke(main, [verb, str(tmp_path), *rest])
    assert done.exit_code == 2 and list(tmp_path.iterdir()) == []
    [line] = [line for line in done.output.splitlines() if line.startswith("r3l-learner: ")]
    assert "has no config.yaml" in line


def test_a_run_without_its_store_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(dump(load(None)))
    done = CliRunner().invoke(main, ["replay", str(tmp_path), "3"])
    assert done.exit_code == 2 and f"no store in {tmp_path / 'buffer'}" in done.output


def test_a_store_of_another_schema_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.yaml").write_text(dump(load(None)))
    Store(tmp_path / "buffer", map_gib=0.1).close()
    monkeypatch.setattr(store, "SCHEMA", store.SCHEMA + 1)
    done = CliRunner().invoke(main, ["replay", str(tmp_path), "3"])
    [line] = [line for line in done.output.splitlines() if line.startswith("r3l-learner: ")]
    assert done.exit_code == 2 and f"has schema {store.SCHEMA - 1}" in line
