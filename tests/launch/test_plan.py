"""The order of the checks, and the presets."""

import fcntl
import inspect
import socket
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from envs import registry
from envs.builtin.policy import builtin_policy
from launch import plan
from launch.cli import main
from r3l.config import load
from tests.launch.fakes import refused


def test_what_is_quick_to_check_is_checked_before_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launch.checks.draft.model_path", lambda *_: pytest.fail("the model"))
    (tmp_path / "config.yaml").write_text("seed: 7")
    with (tmp_path / ".lock").open("w") as lock, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert "free port" in refused("--run", str(tmp_path / "new"), "--buffer", busy)
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = refused("--run", str(tmp_path), "--resume")
    assert "another r3l-launch is using it" in line


def test_every_check_is_in_the_list_once() -> None:
    modules = [import_module(name) for name in sorted({each.__module__ for each in plan.CHECKS})]
    defined = [
        function
        for module in modules
        for name, function in vars(module).items()
        if name.startswith("check_")
        and function.__module__ == module.__name__
        and list(inspect.signature(function).parameters) == ["draft"]
    ]
    assert sorted(map(str, defined)) == sorted(map(str, plan.CHECKS))


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
