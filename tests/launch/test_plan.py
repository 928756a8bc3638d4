"""What a user can get wrong: one line that names it, exit code 2, nothing started."""

import fcntl
import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from click.testing import CliRunner

from envs.builtin.policy import builtin_policy
from launch import plan
from launch.cli import main
from launch.process_commands import ProcessCommands
from r3l.config import load
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


def test_a_run_that_another_launcher_is_at_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 7")
    lock = (tmp_path / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    line = refused("--run", str(tmp_path), "--resume", "seed=8")
    assert "another r3l-launch is at work there" in line
    assert (tmp_path / "config.yaml").read_text() == "seed: 7"
    lock.close()


def test_resume_needs_an_existing_run(run: str) -> None:
    assert "nothing to resume" in refused("--run", run, "--resume")


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
    assert [plan.actor_gpu(i, "0123", 2) for i in range(4)] == ["2", "3", "2", "3"]
    assert [plan.actor_gpu(i, "01", 2) for i in range(3)] == ["0", "1", "0"]
    assert [plan.actor_gpu(i, "01", 0) for i in range(3)] == ["0", "1", "0"]
    assert plan.actor_gpu(0, "", 0) is None


def test_prompts_are_shown_as_the_environment_overrides_them(run: str) -> None:
    result = CliRunner().invoke(main, ["--run", run, "--show-prompts"])
    assert result.exit_code == 0 and not Path(run).exists()
    assert "--- guidance\nadvice: {improvement_suggestion}." in result.output
    assert "--- system\nEach item needs one tool" in result.output


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["buffer.sampler=nope"], "nope"),
        (["buffer.sampler.name=nope"], "nope"),
        (["learner.pack=flex"], "set learner.pack=tree"),
        (["learner.attention=flash_attention_2"], "set learner.attention=sdpa"),
        (["learner.deepspeed={zero_optimization: 3}"], "must be a mapping"),
        (["actor.engine={model: x}"], "actor.engine.model: set by the actor itself"),
        (
            ["actor.engine.max_num_seq=8"],
            "no engine argument of that name; did you mean max_num_seqs?",
        ),
        (["actor.engine.qwertz=8"], "that name; see vLLM's engine arguments"),
        (["--env", "{"], "env '{': unknown"),
        (["--model", "{"], "no config.json"),
        (["--model", "~nobody_of_that_name/x"], "cannot be one"),
        (["--model", "x" * 300], "cannot be one"),
        (["--hostfile", "{bytes}"], "not UTF-8"),
        (["--keys", "{keys}"], "a key must have 40 characters"),
        (["--buffer", "tcp://127.0.0.1:31999", "--weights", "tcp://127.0.0.1:31999"], "--buffer"),
        (["--env", "{broken}:Exits"], "importing it raised SystemExit"),
    ],
)
def test_what_some_process_would_end_over_is_told_before_any_is_started(
    run: str, tmp_path: Path, arguments: list[str], named: str
) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "keys").mkdir()
    bad = {"public": "é" * 40, "secret": "a" * 40, "allowed": []}
    (tmp_path / "keys" / "service.json").write_text(json.dumps(bad))
    (tmp_path / "broken.py").write_text("raise SystemExit(0)")
    paths = {"{bytes}": "bytes", "{keys}": "keys", "{broken}": "broken.py"}
    for name, file in paths.items():
        arguments = [text.replace(name, str(tmp_path / file)) for text in arguments]
    assert named in refused("--run", run, *arguments) and not Path(run).exists()


@pytest.mark.parametrize(
    ("member", "named"),
    [
        ("def close(self): raise KeyError('shut')", "its close raised KeyError"),
        ("task_source = staticmethod(lambda: 1 / 0)", "its task_source raised ZeroDivisionError"),
        ("task_source = staticmethod(lambda: 5)", "its task source raised AttributeError"),
        ("task_source = staticmethod(lambda: ListedTasks({'train': [1]}))", "no envs.Task"),
        ("spec = 'x'", "its spec is a str, not an EnvSpec"),
    ],
)
def test_whatever_a_users_environment_raises_is_one_line_that_names_it(
    run: str, tmp_path: Path, member: str, named: str
) -> None:
    file = tmp_path / f"env{abs(hash(member))}.py"
    file.write_text(
        "from envs import EnvSpec, ListedTasks\n"
        "class Mine:\n"
        "    spec = EnvSpec('mine', '', max_steps=1)\n"
        "    reset = step = close = lambda self, *a, **k: None\n"
        f"    {member}\n"
    )
    line = refused("--run", run, "--env", f"{file}:Mine")
    assert named in line and not Path(run).exists()


@pytest.mark.parametrize(("weights", "named"), [(None, "no weights"), ("half", "is damaged")])
def test_weights_that_were_not_copied_whole_are_refused(
    tmp_path: Path, run: str, weights: str | None, named: str
) -> None:
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.unlink()
    if weights is not None:
        file.write_bytes(whole[: len(whole) // 2])
    assert named in refused("--run", run, "--model", str(model)) and not Path(run).exists()


def test_a_port_whose_run_has_just_ended_is_free() -> None:
    with zmq.Context() as context:
        service, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        client.connect(f"tcp://127.0.0.1:{port}")
        client.send(b"hello")
        service.recv_multipart()
        service.close(linger=0)  # who closes first keeps the port for a minute, in TIME_WAIT
        client.close(linger=0)
    wanted = {"--buffer": f"tcp://127.0.0.1:{port}", "--weights": "tcp://127.0.0.1:*"}
    endpoints = plan._endpoints(wanted)
    assert endpoints[0] == wanted["--buffer"] and endpoints[1] != wanted["--buffer"]


def test_only_the_gpus_that_the_environment_leaves_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for gpu in range(8):
        (tmp_path / f"gpu{gpu}").write_text("")
    monkeypatch.setattr(plan, "GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert plan.visible_gpus() == [str(i) for i in range(8)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5,6")
    assert plan.parse_learner("3gpu") == (3, "gpu")
    with pytest.raises(UserError, match="has 3 GPUs"):
        plan.parse_learner("4gpu")
    assert [plan.actor_gpu(i, plan.visible_gpus(), 2) for i in range(2)] == ["6", "6"]
    two: Any = SimpleNamespace(
        run=tmp_path, config=load(), keys=None, hosts=None, learner_ranks=2, learner_device="gpu",
        actors=0,
        buffer_endpoint="tcp://127.0.0.1:1", weights_endpoint="tcp://127.0.0.1:2",
    )  # fmt: skip
    command = ProcessCommands(two).learner()
    assert command[command.index("--include") + 1] == "localhost:4,5"


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
