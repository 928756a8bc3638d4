"""The benchmark of retries: its counts, its changed folders and its table."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from lab.retries import (
    DATES,
    MadeUp,
    change_world,
    reached,
    refused,
    settings,
    table,
    write_world,
)


@pytest.mark.nightly
def test_every_retry_of_an_agent_with_a_shell_reaches_its_step(tmp_path: Path) -> None:
    config = settings("shell", tmp_path, f"actor.agent.ignore=['{DATES}']")
    found = asyncio.run(reached(config, MadeUp("shell", 0), 10, 1))
    assert found["reached"] == found.total() >= 10


def test_a_clock_among_the_commands_is_counted_as_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.retries.COMMANDS", ("date +%N",))
    found = asyncio.run(reached(settings("shell", tmp_path), MadeUp("shell", 0), 10, 1))
    assert found["replay_diverged"] == found.total() >= 10


def test_changed_folders_are_refused_or_not_seen(tmp_path: Path) -> None:
    found = asyncio.run(refused(settings("shell", tmp_path), MadeUp("shell", 0), 3, seed=0))
    assert found["refused"] >= 3 and not found["accepted"]


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_folder_differs_in_names_or_content(tmp_path: Path, seed: int) -> None:
    def content() -> dict[str, str]:
        return {file.name: file.read_text() for file in (tmp_path / "world").iterdir()}

    write_world(tmp_path / "world")
    before = content()
    change_world(tmp_path / "world", Random(seed))
    changed = content()
    assert changed != before
    write_world(tmp_path / "world")
    assert content() == before


def test_the_table_shows_a_retry_of_each_kind_and_the_saved_share() -> None:
    spent = {(1, "tape"): [10, 40, 2.0, 1.0], (1, "restart"): [10, 80, 4.0, 4.0]}
    assert table(spent)[2] == (
        "| 1 | 10 | 4.0 / 8.0 | 50% | 0.200 / 0.400 | 50% | 0.1000 / 0.4000 | 75% |"
    )
