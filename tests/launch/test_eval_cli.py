"""r3l-eval: what it refuses, and what it shows of a finished evaluation."""

import json
import shutil

import pytest
from click.testing import CliRunner

from envs.builtin.policy import builtin_policy
from launch.eval_cli import main
from launch.evaluation import Result
from tests.r3l.rollout.test_chat import FORGETFUL, tokenizer_for


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "nowhere"], "nowhere"),
        (["--model", "/no/such"], "/no/such"),
        (["--pass-at", "2"], "--attempts 1"),
        (["--env", "gsm8k", "env.options.eval=/no/such.jsonl"], "/no/such.jsonl"),
        (["--env", "aime24", "--split", "train"], "aime24: has no train problems"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_with_exit_code_2(arguments, says, tmp_path):
    result = CliRunner().invoke(main, ["--out", str(tmp_path / "out"), *arguments])
    assert result.exit_code == 2 and says in result.output
    assert len(result.output.strip().splitlines()) == 1 and not (tmp_path / "out").exists()


def test_an_unreachable_engine_is_named_before_anything_is_played(tmp_path):
    arguments = ["--out", str(tmp_path), "--engine", "http://127.0.0.1:9", "--tasks", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "vllm.entrypoints" in result.output


def test_a_finished_evaluation_is_shown_again_without_an_engine(tmp_path, monkeypatch):
    import launch.evaluation as evaluation

    async def fake(tasks, attempts, results, *_, **__):
        for task in tasks:
            results.add(Result(task.task_id, 0, reward=1.0, steps=3, tokens=9))

    class Nothing:
        async def __aenter__(self):
            return None

        async def __aexit__(self, *_):
            return None

    monkeypatch.setattr(evaluation, "play_all", fake)
    monkeypatch.setattr("launch.eval_cli._policy", lambda *_: Nothing())
    arguments = ["--out", str(tmp_path), "--tasks", "5", "--json"]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 0, first.output
    monkeypatch.setattr("launch.eval_cli._policy", lambda *_: pytest.fail("started an engine"))
    again = CliRunner().invoke(main, arguments)
    assert json.loads(again.output) == json.loads(first.output)
    assert json.loads(again.output)["all"]["success"]["mean"] == 1.0
    assert (tmp_path / "report.json").exists() and list((tmp_path / "tensorboard").iterdir())


def test_a_model_trained_without_earlier_reasoning_is_evaluated_as_it_was_trained(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    tokenizer_for(FORGETFUL).save_pretrained(model)
    arguments = [
        "--model",
        str(model),
        "--engine",
        "http://127.0.0.1:9",
        "--out",
        str(tmp_path / "o"),
    ]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2 and "actor.earlier_reasoning=keep" in refused.output
    kept = CliRunner().invoke(main, [*arguments, "actor.earlier_reasoning=keep"])
    assert "no vLLM server replies there" in kept.output
