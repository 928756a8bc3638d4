"""What a plan refuses: one line that names it, exit code 2, nothing started."""

import fcntl
import inspect
import json
import shutil
import socket
from importlib import import_module
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner

from envs import registry
from envs.builtin.policy import builtin_policy
from launch import plan
from launch.cli import main
from r3l.config import dump, load
from r3l.errors import UserError
from r3l.model_folder import fingerprint
from r3l.records import Task
from tests.launch.fakes import refused


def test_unreadable_evaluation_tasks_are_named_before_anything_starts(
    run: Path, tmp_path: Path
) -> None:
    pytest.importorskip("math_verify")
    train = tmp_path / "train.jsonl"
    train.write_text('{"prompt": "1+1?", "answer": "2"}')
    data = (f"env.options.train={train}", "env.options.eval=/no/such.jsonl")
    line = refused("--run", run, "--env", "gsm8k", *data)
    assert "gsm8k.eval: /no/such.jsonl cannot be read" in line and not run.exists()


def test_more_connections_than_the_system_allows_are_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 4096))
    line = refused("--run", run, "--connections", "4000")
    assert "--connections 4000: need 5000 open files, this system allows 4096" in line


def test_a_port_in_use_is_named(run: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for option in ("--buffer", "--weights"):
            line = refused("--run", run, option, f"tcp://127.0.0.1:{port}")
            assert f"{option} tcp://127.0.0.1:{port}" in line and "free port" in line
    assert not run.exists()


def test_a_run_of_another_launcher_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 7")
    lock = (tmp_path / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    line = refused("--run", str(tmp_path), "--resume", "learner.lr=1")
    assert "another r3l-launch is using it" in line
    assert (tmp_path / "config.yaml").read_text() == "seed: 7"
    lock.close()


def test_what_is_quick_to_check_is_checked_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.plan._model", lambda *_, **__: pytest.fail("reads the model"))
    (tmp_path / "config.yaml").write_text("seed: 7")
    with (tmp_path / ".lock").open("w") as lock, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert "free port" in refused("--run", str(tmp_path / "new"), "--buffer", busy)
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = refused("--run", str(tmp_path), "--resume")
    assert "another r3l-launch is using it" in line


def test_shares_are_those_of_environments_of_the_run(run: Path) -> None:
    shares = ("buffer.tasks=mixture", "buffer.tasks.shares={workshop: 3, gym: 1}")
    line = refused("--run", run, *shares, "env.others.keys={}")
    assert "buffer.tasks.shares: gym is no environment of this run, which are workshop" in line
    line = refused("--run", run, "env.others.keys={}")
    assert line.startswith("r3l-launch: env keys: the shipped policy")
    assert "warmup --env workshop --env keys --out runs/warm" in line


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path, run: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    for file in model.glob("*.jinja"):
        file.unlink()
    settings = model / "tokenizer_config.json"
    values = json.loads(settings.read_text())
    values.pop("chat_template", None)
    settings.write_text(json.dumps(values))
    line = refused("--run", run, "--model", str(model))
    assert "chat template" in line and not run.exists()


def test_the_shipped_policy_says_that_it_knows_no_other_world_and_how_to_make_one_that_does(
    run: Path,
) -> None:
    line = refused("--run", run, "--env", "countdown", "--check")
    assert line.startswith("r3l-launch: --env countdown: the shipped policy")
    assert "knows only workshop; give a --model" in line
    assert line.endswith("r3l-learner warmup --env countdown --out runs/warm")
    asked = CliRunner().invoke(main, ["--env", "countdown", "--model", "builtin", "--check"])
    assert asked.exit_code == 0 and "knows only workshop" in asked.output
    assert "shipped policy" not in CliRunner().invoke(main, ["--check"]).output


def test_a_context_that_the_first_prompt_fills_is_refused(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "wordy.py"
    file.write_text(
        "from envs import EnvSpec\n"
        "class Wordy:\n"
        "    spec, in_process = EnvSpec('wordy', '', max_steps=1), True\n"
        "    close = lambda self: None\n"
        "    reset = lambda self, **_: ('the tool is in the box ' * 20, {})\n"
        "    step = lambda self, action: ('done', 0.0, True, False, {})\n"
    )
    line = refused("--run", run, "--env", f"{file}:Wordy", "actor.max_model_len=64")
    assert f"actor.max_model_len=64: the first prompt of task {file}:Wordy/train/" in line
    assert "tokens, which leaves no room for a response" in line and not run.exists()
    checked = load(None, [f"model={builtin_policy()}", "actor.max_model_len=100000"])
    with pytest.raises(UserError, match="its context of 4096 tokens is shorter than the first"):
        plan.check_first_prompts(checked, [Task("t/1", "t", 1)], [5000])


def test_a_nearly_full_disk_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("r3l.process.room._free", lambda path: 100 << 20)
    line = refused("--run", run)
    assert f"run {run}: 100 MiB are free on its disk, it needs " in line and not run.exists()


def test_a_port_is_free_again_as_soon_as_its_run_has_ended() -> None:
    with zmq.Context() as context:
        service, client = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        port = service.bind_to_random_port("tcp://127.0.0.1")
        client.connect(f"tcp://127.0.0.1:{port}")
        client.send(b"hello")
        service.recv_multipart()
        service.close(linger=0)  # who closes first keeps the port for a minute, in TIME_WAIT
        client.close(linger=0)
    wanted = {"--buffer": f"tcp://127.0.0.1:{port}", "--weights": "tcp://127.0.0.1:*"}
    plan._check_binds(wanted)


def test_an_engine_that_is_split_otherwise_than_the_option_says_is_refused(run: Path) -> None:
    split = "actor.engine.tensor_parallel_size=2"
    assert plan.wanted_places(load(None, [split]), 1, "1cpu").actor_gpus == 2
    line = refused("--run", run, "--actor-gpus", "4", split)
    assert "--actor-gpus 4: actor.engine.tensor_parallel_size is 2" in line
    line = refused("--run", run, "actor.engine.tensor_parallel_size=many")
    assert "tensor_parallel_size=many: must be a number" in line


def checkpoint_of(run: Path, model: Path, **more: object) -> None:
    folder = run / "checkpoints" / "step-000007"
    folder.mkdir(parents=True)
    values = {"schema": 3, "version": 7, "groups": [], "origin": fingerprint(model), "files": {}}
    values |= {"dtype": "torch.float32"} | more
    (folder / "state.json").write_text(json.dumps(values))
    (run / "config.yaml").write_text(dump(load(None, [f"model={model}"])))


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, run: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "other"
    shutil.copytree(builtin_policy(), other)
    weights = load_file(other / "model.safetensors")
    save_file({k: v * 1.5 for k, v in weights.items()}, other / "model.safetensors")
    checkpoint_of(run, other)
    before = (run / "config.yaml").read_text()
    line = refused("--run", run, "--resume", "--model", str(builtin_policy()))
    assert "step-000007" in line and "another model" in line
    assert (run / "config.yaml").read_text() == before


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"dtype": "torch.bfloat16"}, "learner.dtype"),
        ({"schema": 1}, "schema 1"),
        ({"lora": {"rank": 4, "alpha": 32.0, "targets": []}}, "the same learner.lora"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused(run: Path, written: dict, named: str) -> None:
    checkpoint_of(run, builtin_policy(), **written)
    assert named in refused("--run", run, "--resume")


PAPER = {  # environment -> training tasks, optimizer steps, tokens per response, options
    "alfworld": (3553, 740, 512, {"admissible": True, "max_steps": 25}),
    "webshop": (
        10587,
        2205,
        512,
        {"products": 0, "goals": "human", "admissible": True, "max_steps": 15},
    ),
    "scienceworld": (3592, 748, 512, {"max_steps": 25}),
    "gsm8k": (7473, 1556, 4096, {"attempts": 3}),
}


@pytest.mark.parametrize("name", PAPER)
def test_a_preset_has_the_settings_of_the_paper_and_its_released_code(name: str) -> None:
    config = load(plan.preset_file(f"paper-{name}"))
    algorithm, actor, learner = config.algorithm, config.actor, config.learner
    tasks, steps, response, options = PAPER[name]
    assert (config.env.name, config.env.train_tasks, config.env.options) == (name, tasks, options)
    assert (algorithm.name, algorithm.group_size, algorithm.alpha) == ("r3l", 8, 3.0)
    assert (algorithm.normalize, algorithm.sft_pool, algorithm.sft_weight) == ("token", "shared", 1)
    assert algorithm.verified_requires_success and algorithm.kl_coef == 0
    assert (actor.temperature, actor.reflect_temperature, config.eval.temperature) == (
        1.0,
        1.0,
        0.4,
    )
    assert (actor.max_response_tokens, actor.max_reflection_tokens) == (response, 4096)
    assert actor.max_model_len == 20480
    assert (learner.lr, learner.betas, learner.weight_decay) == (1e-6, (0.9, 0.999), 0.01)
    assert (learner.grad_clip, learner.groups_per_step, learner.steps) == (1.0, 96, steps)
    assert steps * 96 <= 20 * tasks < (steps + 1) * 96, "20 epochs, not more"
    assert (learner.sync_every, config.buffer.max_staleness, config.eval.every) == (1, 1, 20)
    assert "model" not in config.model_fields_set


@pytest.mark.parametrize("path", sorted(plan.PRESETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_preset_names_only_options_that_its_environment_has(path: Path) -> None:
    config = load(plan.preset_file(path.stem))
    module, _, kind = registry.ENVIRONMENTS[config.env.name].partition(":")
    options = inspect.signature(getattr(import_module(module), kind)).parameters
    assert set(config.env.options) <= set(options)


def test_a_check_says_what_is_missing_and_starts_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ALFWORLD_DATA", "WEBSHOP"):
        monkeypatch.delenv(name, raising=False)
    for name in ("alfworld", "webshop"):
        line = refused("--run", run, "--preset", f"paper-{name}", "--model", "builtin", "--check")
        assert line.startswith(f"r3l-launch: env {name}: needs "), "a package, or the data"
    pytest.importorskip("math_verify")
    problems = tmp_path / "problems.jsonl"
    problems.write_text('{"question": "1+1?", "answer": "#### 2"}')
    gsm8k = ["--run", str(run), "--preset", "paper-gsm8k", "--check"]
    gsm8k += [f"env.options.{split}={problems}" for split in ("train", "eval")]
    assert "names no model" in refused(*gsm8k)
    assert "/no/such/model" in refused(*gsm8k, "--model", "/no/such/model")
    result = CliRunner().invoke(main, [*gsm8k, "--model", "builtin"])
    assert result.exit_code == 0, result.output
    assert f"nothing is missing: gsm8k, r3l, {builtin_policy()}\n" in result.output
    assert not run.exists()
