"""A run that is resumed: changed settings, and a run with nothing left to do."""

import shutil
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest
from click.testing import CliRunner

from buffer.storage.layout import SCHEMA as SCHEMA_OF_STORE
from buffer.storage.store import Store
from launch.checks import resume
from launch.checks.resume import changed_settings
from launch.cli import main
from learner.checkpoint import SCHEMA
from r3l import codec
from r3l.errors import UserError
from r3l.files import hub_data_set
from r3l.files.whole_file import write_json
from r3l.models.model_path import builtin_policy
from r3l.run.config import RunConfig, load
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import RunFolder
from tests.launch.fakes import refused
from tests.r3l.files.made import evaluation


def config(*overrides: str) -> RunConfig:
    return load(None, [f"model={builtin_policy()}", *overrides])


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """The folder of a run that was begun with the defaults."""
    RunFolder(tmp_path).write_settings(config())
    return tmp_path


def test_a_resume_that_would_read_other_rows_is_refused(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_data_set, "commits", {"org/d": "a" * 40, "org/other": "c" * 40})
    resume.check_data_sets(begun, force=False)
    RunFolder(begun).write_data_sets({"org/d": "a" * 40, "org/unread": "b" * 40})
    resume.check_data_sets(begun, force=False)
    hub_data_set.commits["org/d"] = "b" * 40
    resume.check_data_sets(begun, force=True)
    with pytest.raises(UserError) as error:
        resume.check_data_sets(begun, force=False)
    said = str(error.value)
    assert "data set org/d at commit aaaaaaaa, but the cache is at bbbbbbbb, whose rows" in said
    assert f"--revision {'a' * 40} and write that commit into " in said
    assert "datasets--org--d/refs/main, or add --force" in said


def reached(run: Path, version: int, *, evaluated: int = -1, model: bool = True) -> None:
    """The run has a checkpoint of a version, has saved its model, and evaluated a version."""
    folder = run / "checkpoints" / f"step-{version:06d}"
    folder.mkdir(parents=True)
    state = {"schema": SCHEMA, "version": version, "groups": [], "model_digest": "", "files": {}}
    state |= {"dtype": "torch.float32"}
    write_json(folder / "state.json", state)
    folder = RunFolder(run)
    folder.add_progress(evaluation(0))
    folder.add_progress(StepLine(version))
    if evaluated >= 0:
        folder.add_progress(evaluation(evaluated))
    with folder.progress.open("a") as file:
        file.write('{"kind": "st')
    if model:
        (run / "model").mkdir()
        (run / "model" / "config.json").write_text("{}")


@pytest.mark.parametrize("schema", [SCHEMA_OF_STORE - 1, SCHEMA_OF_STORE + 1])
def test_a_store_of_another_schema_is_refused_before_the_start(begun: Path, schema: int) -> None:
    store = RunFolder(begun).store
    store.mkdir()
    Store(store, map_gib=0.01).close()
    resume.check_store(store)
    with lmdb.open(str(store), max_dbs=16) as env, env.begin(write=True) as raw:
        raw.put(b"schema", codec.pack({"schema": schema}), db=env.open_db(b"sys", raw))
    line = refused("--run", str(begun), "--resume")
    assert f"has schema {schema}, but this r3l reads only schema" in line
    assert "choose a new folder" in line and not (begun / "logs").exists()


def test_settings_that_are_not_as_they_were_are_listed(begun: Path) -> None:
    assert changed_settings(begun, config(), force=False) == ()
    other = config("learner.lr=0.001", "actor.engine.seed=3", "algorithm.alpha=2")
    assert changed_settings(begun, other, force=False) == (
        "actor.engine.seed: – -> 3",
        "algorithm.alpha: 3.0 -> 2.0",
        "learner.lr: 1e-06 -> 0.001",
    )


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("env=keys", "env.name: workshop -> keys"),
        ("env.options.items=3", "env.options.items: – -> 3"),
        ("algorithm=grpo", "algorithm.name: r3l -> grpo"),
        ("env.others={keys: {}}", "env.others.keys: – -> {}"),
        ("seed=1", "seed: 0 -> 1"),
        ("learner.groups_per_step=4", "learner.groups_per_step: 16 -> 4"),
    ],
)
def test_what_makes_another_run_is_refused_unless_the_user_insists(
    begun: Path, override: str, line: str
) -> None:
    with pytest.raises(UserError, match=r"changed setting .*--force") as no:
        changed_settings(begun, config(override), force=False)
    assert line in str(no.value)
    assert line in changed_settings(begun, config(override), force=True)


def test_a_model_may_lie_elsewhere_but_be_no_other(begun: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(builtin_policy(), copy)
    assert changed_settings(begun, config(f"model={copy}"), force=False) == ()
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"changed setting \(model: "):
        changed_settings(begun, config(f"model={copy}"), force=False)


def test_the_command_refuses_another_seed_and_starts_nothing(begun: Path) -> None:
    line = refused("--run", begun, "--resume", "--seed", "7")
    assert f"run {begun}: cannot be resumed" in line and "(seed: 0 -> 7)" in line
    assert not (begun / "logs").exists()


def test_a_run_whose_settings_were_lost_is_refused_by_the_name_of_the_file(begun: Path) -> None:
    (begun / "config.yaml").write_text("")
    assert "config.yaml: is empty" in refused("--run", begun, "--resume")


def test_a_run_with_nothing_left_to_do_says_so_and_starts_nothing(begun: Path) -> None:
    reached(begun, 60, evaluated=60)
    result = CliRunner().invoke(main, ["--run", str(begun), "--resume"])
    assert result.exit_code == 0
    assert f"run {begun}: all 60 steps are done" in result.output
    assert " --resume --steps 120;" in result.output
    assert result.output.endswith(f" {begun / 'model'}\n") and result.output.count("\n") == 1
    assert not (begun / "logs").exists()
    result = CliRunner().invoke(main, ["--run", str(begun), "--resume", "--steps", "20"])
    assert f"run {begun}: 60 steps are already done" in result.output


@pytest.mark.parametrize(
    ("version", "more"),
    [(59, {"evaluated": 59}), (60, {}), (60, {"evaluated": 60, "model": False})],
)
def test_a_step_an_evaluation_or_a_model_may_be_left_to_make(
    begun: Path, version: int, more: dict
) -> None:
    assert resume.nothing_to_do(begun, config()) == ""
    reached(begun, version, **more)
    assert resume.nothing_to_do(begun, config()) == ""


def test_nothing_to_do_is_found_without_a_heavy_library(begun: Path) -> None:
    reached(begun, 60, evaluated=60)
    code = (
        "import sys\nfrom launch.cli import main\n"
        f"main(['--run', {str(begun)!r}, '--resume'], standalone_mode=False)\n"
        "print('heavy:', *({'torch', 'transformers', 'deepspeed', 'vllm'} & sys.modules.keys()))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "there is nothing to do" in said[0] and said[1] == "heavy:"
