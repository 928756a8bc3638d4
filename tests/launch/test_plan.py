"""What a user can get wrong: one line that names it, exit code 2, nothing started."""

import json
import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from envs.builtin import builtin_policy
from launch import plan
from launch.cli import main
from r3l.errors import UserError


def refused(*arguments: str) -> str:
    """The one line r3l-launch answers with."""
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 2, result.output
    lines = result.output.strip().splitlines()
    assert len(lines) == 1, result.output
    return lines[0]


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(tmp_path / "run")


def test_an_unknown_config_key_is_named_with_the_known_ones(run: str) -> None:
    line = refused("--run", run, "learner.speed=9")
    assert "learner.speed" in line and "groups_per_step" in line
    assert not Path(run).exists()


def test_an_unknown_environment_is_named_with_the_known_ones(run: str) -> None:
    line = refused("--run", run, "--env", "nowhere")
    assert "nowhere" in line and "workshop" in line and not Path(run).exists()


def test_evaluation_tasks_that_cannot_be_read_are_named_before_anything_starts(
    run: str, tmp_path: Path
) -> None:
    pytest.importorskip("math_verify")
    train = tmp_path / "train.jsonl"
    train.write_text('{"prompt": "1+1?", "answer": "2"}')
    data = (f"env.options.train={train}", "env.options.eval=/no/such.jsonl")
    line = refused("--run", run, "--env", "gsm8k", *data)
    assert "gsm8k.eval: /no/such.jsonl cannot be read" in line and not Path(run).exists()


def test_an_unknown_model_is_named_with_what_to_give_instead(run: str) -> None:
    line = refused("--run", run, "--model", "/no/such/model")
    assert "/no/such/model" in line and "builtin" in line and not Path(run).exists()


def test_keys_that_are_not_there_and_open_addresses_without_keys_are_refused(
    run: str, tmp_path: Path
) -> None:
    line = refused("--run", run, "--keys", str(tmp_path / "none"))
    assert "service.json: cannot be read" in line and not Path(run).exists()
    for option in ("--buffer", "--weights"):
        line = refused("--run", run, option, "tcp://0.0.0.0:*")
        assert option in line and "without --keys" in line and not Path(run).exists()


def test_gpus_that_are_not_there_are_refused(run: str) -> None:
    if plan.count_gpus() >= 64:
        pytest.skip("this machine has 64 GPUs")
    line = refused("--run", run, "--learner", "64gpu")
    assert "64gpu" in line and "GPUs" in line and not Path(run).exists()


@pytest.mark.parametrize("text", ["gpu", "0cpu", "1tpu", "2 cpu"])
def test_a_learner_that_is_no_count_and_device_is_refused(text: str, run: str) -> None:
    assert "1cpu or 8gpu" in refused("--run", run, "--learner", text)


def test_a_port_in_use_is_named(run: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for option in ("--buffer", "--weights"):
            line = refused("--run", run, option, f"tcp://127.0.0.1:{port}")
            assert f"{option} tcp://127.0.0.1:{port}" in line and "free port" in line
    assert not Path(run).exists()


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused("--run", str(tmp_path / "file" / "run"))


def test_an_existing_run_needs_resume(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    assert "--resume" in refused("--run", str(tmp_path))


def test_resume_needs_an_existing_run(run: str) -> None:
    assert "config.yaml" in refused("--run", run, "--resume")


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path, run: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    for file in model.glob("*.jinja"):
        file.unlink()
    settings = model / "tokenizer_config.json"
    values = json.loads(settings.read_text())
    values.pop("chat_template", None)
    settings.write_text(json.dumps(values))
    line = refused("--run", run, "--model", str(model))
    assert "chat template" in line and not Path(run).exists()


def test_an_algorithm_that_does_not_exist_and_a_setting_it_does_not_use_are_named(run: str) -> None:
    assert "critique_grpo" in refused("--run", run, "algorithm=nope")
    assert "alpha" in refused("--run", run, "algorithm=grpo", "algorithm.alpha=2")


def test_more_ranks_than_groups_are_refused(run: str) -> None:
    line = refused("--run", run, "--learner", "2cpu", "learner.groups_per_step=1")
    assert "2cpu" in line and "groups_per_step" in line


def test_every_rank_and_device_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.parse_learner("2cpu") == (2, "cpu")
    monkeypatch.setattr(plan, "count_gpus", lambda: 8)
    assert plan.parse_learner("8gpu") == (8, "gpu")
    with pytest.raises(UserError, match="8 GPUs"):
        plan.parse_learner("9gpu")


def test_actors_take_the_gpus_the_learner_leaves_and_share_when_it_leaves_none() -> None:
    assert [plan.actor_gpu(i, 4, 2) for i in range(4)] == [2, 3, 2, 3]
    assert [plan.actor_gpu(i, 2, 2) for i in range(3)] == [0, 1, 0]
    assert [plan.actor_gpu(i, 2, 0) for i in range(3)] == [0, 1, 0]
    assert plan.actor_gpu(0, 0, 0) is None


def test_prompts_are_shown_as_the_environment_overrides_them(run: str) -> None:
    result = CliRunner().invoke(main, ["--run", run, "--show-prompts"])
    assert result.exit_code == 0 and not Path(run).exists()
    assert "--- guidance\nadvice: {improvement_suggestion}." in result.output
    assert "--- system\nEach item needs one tool" in result.output


def test_an_environment_without_tasks_is_refused(run: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text(
        "from envs import EnvSpec, ListedTasks\n"
        "class Empty:\n"
        "    spec = EnvSpec('empty', '', max_steps=1)\n"
        "    task_source = staticmethod(lambda: ListedTasks({}))\n"
        "    reset = step = close = lambda self, *a, **k: None\n"
    )
    line = refused("--run", run, "--env", f"{file}:Empty")
    assert "train split holds no tasks" in line and not Path(run).exists()
