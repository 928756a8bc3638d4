"""What a command lacks is downloaded after consent, from a server that answers as the hub does."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.files import hub_cache, hub_data_set
from r3l.models.model_path import builtin_policy, model_path
from r3l.models.weight_files import SINGLE
from r3l.run import downloads
from r3l.run.downloads import with_downloads
from tests.launch.fakes import refused
from tests.r3l.files.hub_server import Hub, serving

FOUND = "no path here, but on the hub: 1.98 MB in 6 files"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the shipped policy and a data set, and an empty cache."""
    model = {path.name: path.read_bytes() for path in builtin_policy().iterdir()}
    tasks = "".join(json.dumps({"question": f"{n}+1?", "answer": n + 1}) + "\n" for n in range(4))
    served = Hub({("", "org/tiny"): model, ("datasets", "org/d"): {"train.jsonl": tasks.encode()}})
    with serving(served):
        monkeypatch.setattr(hub_cache, "cache", lambda: tmp_path / "hub")
        monkeypatch.setattr(hub_cache, "endpoint", lambda: served.address)
        monkeypatch.chdir(tmp_path)
        yield served


def test_a_model_and_a_data_set_are_downloaded_once(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> tuple[Path, int]:
        return model_path("org/tiny"), len(hub_data_set.rows("org/d@train"))

    folder, count = with_downloads(work, yes=True)
    assert (folder / SINGLE).read_bytes() == (builtin_policy() / SINGLE).read_bytes()
    assert count == 4
    said = [line for line in capsys.readouterr().err.split("\n") if line.startswith("downl")]
    assert len(said) == 2 and said[0].startswith(f"downloading model org/tiny: {FOUND}")
    assert said[1].startswith("downloading data set org/d@train: ")
    hub.asked.clear()
    assert with_downloads(work, yes=False) == (folder, 4) and hub.asked == []


def test_without_a_terminal_consent_is_an_option(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        with_downloads(lambda: model_path("org/tiny"), yes=False)
    assert str(error.value) == (
        f"model org/tiny: {FOUND} from {hub.address} to {tmp_path / 'hub'}: add --yes to "
        "download it, or type: hf download org/tiny"
    )
    assert not any(SINGLE in path for path in hub.asked)


@pytest.mark.parametrize("typed", ["y\n", "n\n"])
def test_at_a_terminal_one_line_asks(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    terminal = io.StringIO(typed)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)
    if typed == "y\n":
        assert with_downloads(lambda: model_path("org/tiny"), yes=False).is_dir()
    else:
        with pytest.raises(UserError, match=r"^model org/tiny: was not downloaded; give a folder"):
            with_downloads(lambda: model_path("org/tiny"), yes=False)
        assert not any(SINGLE in path for path in hub.asked)
    asked = [line for line in capsys.readouterr().err.split("\n") if "?" in line]
    assert len(asked) == 1 and asked[0].startswith(f"download model org/tiny: {FOUND}")


def test_a_dry_run_downloads_neither_a_model_nor_a_data_set(hub: Hub, tmp_path: Path) -> None:
    given = ["--model", "org/tiny", "--run", "first", "--dry-run", "--yes", "--env", "agent",
             "env.options.command=true {question}", "env.options.tasks=org/d@train"]  # fmt: skip
    for name in ("model org/tiny", "data set org/d@train"):
        line = refused(*given).replace("--model", "model")
        assert line.startswith(f"r3l-launch: {name}: no path here, but on the hub: ")
        assert "a dry run downloads nothing; type: hf download org/" in line
        assert not list((tmp_path / "hub").rglob(SINGLE)) and not any(tmp_path.rglob("*.jsonl"))
        given[1] = "builtin"
    assert not (tmp_path / "runs").exists()


def test_a_download_that_does_not_help_is_not_repeated(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "fetch", lambda *_, **__: None)
    with pytest.raises(UserError, match="is neither a path here nor in the hub cache"):
        with_downloads(lambda: model_path("org/tiny"), yes=True)


def test_a_run_is_checked_with_a_model_and_tasks_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    """A real process, behind HF_ENDPOINT."""
    launch = [sys.executable, "-m", "launch.cli", "--check", "--run", "first", "--env", "agent"]
    given = ["--model", "org/tiny@main", "algorithm=grpo", "env.options.command=true {question}",
             "env.options.tasks=org/d@train"]  # fmt: skip
    own = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    path = str(Path(__file__).parents[3])

    def answer(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*launch, *given, *more],
            cwd=tmp_path,
            env=os.environ | own | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )

    refused = answer()
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(f"r3l-launch: --model org/tiny@main: {FOUND} from ")
    done = answer("--yes")
    assert done.returncode == 0, done.stderr
    assert "all checks passed" in done.stdout and str(tmp_path / "home") in done.stdout
    assert not (tmp_path / "runs").exists()
