"""Paths of a run's settings: the same files are read from every folder."""

import os
from pathlib import Path

import pytest

from launch.checks.absolute_paths import absolute, command_text, path_text
from r3l.run.config import RunConfig, dump, load


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files and folders that settings may name."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "train").mkdir()
    for name in ("tasks.jsonl", "sub/own.py", "grade.py", "agent.py", "save.sh", "two words.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("tasks.jsonl", "{here}/tasks.jsonl"),
        ("./tasks.jsonl", "{here}/tasks.jsonl"),
        ("sub/../tasks.jsonl", "{here}/tasks.jsonl"),
        ("two words.txt", "{here}/two words.txt"),
        ("sub/own.py:Door", "{here}/sub/own.py:Door"),
        ("grade.py:score", "{here}/grade.py:score"),
        *((same, same) for same in (
            "train", "work", "none.jsonl", "no.py:Door", "/etc/hosts", "~/tasks.jsonl", "", ".",
            "owner/name@train", "https://a/tasks.jsonl", "tasks", "a\0b", "agent", "..", "x" * 5000,
        )),
    ],
)  # fmt: skip
def test_only_what_is_surely_a_path_becomes_absolute(here: Path, text: str, made: str) -> None:
    assert path_text(text) == made.replace("{here}", str(here))


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("python agent.py train {q}", "python {here}/agent.py {here}/train '{q}'"),
        ("./save.sh {folder}", "{here}/save.sh '{folder}'"),
        ("save.sh x", "save.sh x"),
        ("python -m train tasks.jsonl", "python -m train {here}/tasks.jsonl"),
        ("agent.py:play", "{here}/agent.py:play"),
        ("aws s3 sync {folder} s3://b/{name}", "aws s3 sync {folder} s3://b/{name}"),
        ("http://127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("'open", "'open"),
        ("", ""),
    ],
)  # fmt: skip
def test_the_files_in_a_command_become_absolute(here: Path, text: str, made: str) -> None:
    assert command_text(text) == made.replace("{here}", str(here))


def settings() -> RunConfig:
    return load(
        None,
        [
            "env=agent",
            "env.options.command=python agent.py",
            "env.options.tasks=tasks.jsonl",
            "env.options.reward=grade.py:score",
            "env.options.workspace=work",
            "env.options.mcp={files: ./save.sh}",
            "env.others={'sub/own.py:Door': {split: train, data: train, deep: [sub/own.py]}}",
            "buffer.sampler.name=grade.py:Recency",
            "learner.on_checkpoint=./save.sh {folder}",
        ],
    )


def test_settings_read_the_same_files_from_another_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = absolute(settings())
    (here / "config.yaml").write_text(dump(made))
    monkeypatch.chdir("/")
    again = load(here / "config.yaml")
    assert again == made and absolute(again) == made
    options = again.env.options
    assert options["command"] == f"python {here}/agent.py"
    assert options["mcp"] == {"files": f"{here}/save.sh"}
    assert {options[name] for name in ("tasks", "workspace", "reward")} == {
        f"{here}/tasks.jsonl", f"{here}/work", f"{here}/grade.py:score"
    }  # fmt: skip
    own = {"split": "train", "data": f"{here}/train", "deep": [f"{here}/sub/own.py"]}
    assert again.env.others == {f"{here}/sub/own.py:Door": own}
    assert again.buffer.sampler.name == f"{here}/grade.py:Recency"
    assert again.learner.on_checkpoint == f"{here}/save.sh '{{folder}}'"
    assert again.env.title == "agent + own.py:Door"


def test_a_run_that_began_with_relative_paths_keeps_them(here: Path) -> None:
    known = settings()
    assert absolute(known, known) is known
    (here / "more.jsonl").write_text("")
    changed = known.env.model_copy(update={"options": known.env.options | {"tasks": "more.jsonl"}})
    made = absolute(known.model_copy(update={"env": changed}), known).env.options
    assert made["tasks"] == os.path.abspath("more.jsonl") and made["workspace"] == "work"


def test_settings_without_paths_stay_the_same_object(here: Path) -> None:
    config = load(None, [])
    assert absolute(config) is config
