"""r3l-eval: what it refuses, and what it shows of a finished evaluation."""

import asyncio
import json
import os
import shutil
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.eval_cli import main, progress_line
from r3l.errors import EngineDead
from r3l.models.model_folder import write_checksums
from r3l.models.model_path import builtin_policy
from r3l.run.config import dump, load
from tests.launch.inspection.pages.html import read
from tests.learner.evaluation.fakes import attempted, turn
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.test_chat import FORGETFUL, tokenizer_for

AGENT = Path(__file__).parents[1] / "actors" / "agents" / "stdlib_agent.py"


@pytest.fixture
def played(monkeypatch):
    """Evaluations are played without an engine; returns the model folders they were made with."""
    models = []

    async def fake(tasks, attempts, folder, policy, make_env, config, **_):
        models.append(Path(config.model))
        for task in tasks:
            steps = (turn("a door", "open \x1b[2J", 9, 1.0),)
            folder.add(attempted(task.task_id, 0, reward=1.0, steps=steps))

    class Nothing:
        async def __aenter__(self):
            return None

        async def __aexit__(self, *_):
            return None

    monkeypatch.setattr("launch.eval_cli.play_all", fake)
    monkeypatch.setattr("launch.eval_cli.own_engine", lambda *_: Nothing())
    return models


def test_a_run_is_evaluated_with_its_settings_and_its_best_or_last_model(
    tmp_path, monkeypatch, played
):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "first"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(dump(load(None, ["env=keys", "seed=7"])))
    refused = CliRunner().invoke(main, ["--run", "first"])
    assert refused.exit_code == 2 and "--run runs/first: has no model/" in refused.output
    for model, step in (("model", 3), ("best", 2)):
        shutil.copytree(builtin_policy(), run / model)
        write_checksums(run / model, step)
        result = CliRunner().invoke(main, ["--run", "first", "--tasks", "3"])
        assert result.exit_code == 0, result.output
        assert f"runs/first/{model}: weights of step {step}" in result.output
        assert played[-1] == run / model
        (folder,) = (tmp_path / "runs" / "eval").glob(f"first-{model}-keys-*")
        settings = json.loads((folder / "settings.json").read_text())
        assert (settings["env"]["name"], settings["seed"]) == ("keys", 7)
        assert settings["weights"].startswith(f"step {step} ")
    CliRunner().invoke(main, ["--run", "first", "--model", str(run / "model"), "--seed", "8"])
    assert played[-1] == run / "model"


def test_a_named_environment_of_a_run_of_several_is_played_alone(tmp_path, monkeypatch, played):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / "both"
    shutil.copytree(builtin_policy(), run / "model")
    (run / "config.yaml").write_text(dump(load(None, ["env.others={keys: {locks: 4}}"])))
    for name in ("workshop", "keys"):
        called = ["--run", "both", "--env", name, "--tasks", "3", "--out", str(tmp_path / name)]
        assert CliRunner().invoke(main, called).exit_code == 0
        env = json.loads((tmp_path / name / "settings.json").read_text())["env"]
        assert (env["name"], env["others"]) == (name, {})
    assert env["options"] == {"locks": 4}


def test_ctrl_c_is_told_as_such_although_the_engine_ends_of_it_too(tmp_path, monkeypatch):
    @asynccontextmanager
    async def starting(*_):
        os.kill(os.getpid(), signal.SIGINT)  # a terminal sends it to the engine's process too
        await asyncio.to_thread(lambda: None)
        raise EngineDead("the engine did not start")
        yield

    monkeypatch.setattr("launch.eval_cli.own_engine", starting)
    result = CliRunner().invoke(main, ["--out", str(tmp_path), "--tasks", "1"])
    said = "r3l-eval: interrupted; run the same command again to continue\n"
    assert result.exit_code == 130 and result.stderr.endswith(said)


def test_progress_counts_attempts_and_their_success():
    done = [attempted("a", 0, reward=1.0), attempted("b", 0), attempted("c", 0, cause="x")]
    assert progress_line(done, 200) == "3/200 attempts, success 0.33, 1 failed"
    assert progress_line([], 5) == "0/5 attempts, success 0.00"


def test_a_finished_evaluation_is_shown_again_without_an_engine(tmp_path, monkeypatch, played):
    arguments = ["--out", str(tmp_path), "--tasks", "5", "--json"]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 0, first.output
    monkeypatch.setattr("launch.eval_cli.own_engine", lambda *_: pytest.fail("started an engine"))
    again = CliRunner().invoke(main, arguments)
    assert json.loads(again.output) == json.loads(first.output)
    assert json.loads(again.output)["all"]["estimates"]["success"]["mean"] == 1.0
    assert (tmp_path / "report.json").exists()


def test_an_agent_is_evaluated_and_its_calls_are_shown(tmp_path, monkeypatch):
    @asynccontextmanager
    async def engine(*_):
        yield ScriptedPolicy(lambda text: "yes")

    monkeypatch.setattr("launch.eval_cli.own_engine", engine)
    tasks = tmp_path / "tasks.jsonl"
    asked = [{"id": n, "question": f"q{n}", "answer": "yes"} for n in range(3)]
    tasks.write_text("\n".join(map(json.dumps, asked)))
    given = json.dumps({"command": f"python {AGENT}", "tasks": str(tasks)})
    command = ["--env", "agent", f"env.options={given}", "--tasks", "3", "--out", "out"]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, [*command, "--show", "1"])
    assert result.exit_code == 0, result.output
    assert "Are you sure?" in result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["all"]["tasks"] == 3 and report["all"]["failed"] == {}
    assert report["all"]["estimates"]["success"]["mean"] == 1.0
    refused = CliRunner().invoke(main, [*command[:-1], "no", "actor.agent.tool_parser=nope"])
    assert refused.exit_code == 2 and "tool_parser" in refused.output
    assert not (tmp_path / "no").exists()


def test_an_evaluation_on_disk_is_read_shown_and_compared(tmp_path, played):
    folders = {name: str(tmp_path / name) for name in ("one", "two", "other")}
    for name, more in (("one", []), ("two", ["--seed", "3"]), ("other", ["--env", "keys"])):
        called = ["--out", folders[name], "--tasks", "5", *more]
        assert CliRunner().invoke(main, called).exit_code == 0
    shown = CliRunner().invoke(main, ["--read", folders["one"], "--show", "2"])
    assert shown.exit_code == 0 and shown.output.count("━━") == 2, shown.output
    assert "    a door" in shown.output and "\x1b" not in shown.output
    compared = ["--read", folders["one"], "--against", folders["two"]]
    assert "better" in CliRunner().invoke(main, compared).output
    found = json.loads(CliRunner().invoke(main, [*compared, "--json"]).output)
    assert found["against"]["success"]["same"] == 5
    page = tmp_path / "page.html"
    paged = CliRunner().invoke(main, [*compared, "--json", "--html", str(page)])
    assert json.loads(paged.stdout) == found and f"{page}: " in paged.stderr
    assert "Against the other evaluation" in read(page.read_bytes()).text
    refused = CliRunner().invoke(main, ["--read", folders["one"], "--against", folders["other"]])
    assert refused.exit_code == 2 and "--against" in refused.output
    assert len(played) == 3


def called(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_the_panel_is_printed_written_and_checked_before_anything_is_played(tmp_path, played):
    file, usual = tmp_path / "panel.json", ("--env", "keys", "--tasks", 4)
    first = called(*usual, "--out", tmp_path / "one", "--panel", file)
    assert first.exit_code == 0 and "panel: keys, eval, 4 tasks, digest " in first.output
    digest = json.loads(file.read_text())["digest"]
    again = called(*usual, "--out", tmp_path / "two", "--panel", file, "--json")
    assert json.loads(again.output)["panel"] == {
        "env": "keys", "split": "eval", "tasks": 4, "digest": digest,
    }  # fmt: skip
    for more, why in (
        (
            ("--env", "keys", "--tasks", 3),
            "has 4 tasks, and this evaluation only 3; give --tasks 4",
        ),
        (("--env", "workshop", "--tasks", 4), "is of the environment keys, not workshop"),
        ((*usual, "--split", "train"), "is of the split eval, not train"),
        ((*usual, "env.options.locks=2"), "is of the env.options defaults, not"),
    ):
        other = (*more, "--out", tmp_path / "new", "--panel", file)
        refused = called(*other)
        assert refused.exit_code == 2 and f"--panel {file}: {why}" in refused.output
        assert len(played) == 2 and not (tmp_path / "new").exists()
    marked = called(*other, "--any-panel")
    assert marked.exit_code == 0 and f"not comparable: --panel {file}: is of the" in marked.output
    shown = called("--read", tmp_path / "new", "--json")
    assert "env.options" in json.loads(shown.output)["not_comparable"]
    kept = called("--read", tmp_path / "one")
    assert f"digest {digest}" in kept.output


def test_a_world_that_has_changed_since_is_neither_continued_nor_compared(
    tmp_path, played, monkeypatch
):
    usual = ("--env", "keys", "--tasks", 4)
    called(*usual, "--out", tmp_path / "one")
    monkeypatch.setattr(
        "envs.builtin.keys.Keys._view", lambda self: f"bolt {self.state.place}", raising=False
    )
    again = called(*usual, "--out", tmp_path / "one")
    assert again.exit_code == 2 and "holds an evaluation with panel" in again.output
    against = called(*usual, "--out", tmp_path / "two", "--against", tmp_path / "one")
    assert against.exit_code == 2 and "so the environment has changed" in against.output
    assert len(played) == 1


def test_every_temperature_is_played_reported_and_read_again(tmp_path, monkeypatch):
    @asynccontextmanager
    async def engine(*_):
        yield policy

    policy = ScriptedPolicy(lambda prompt: "turn brass")
    monkeypatch.setattr("launch.eval_cli.own_engine", engine)
    usual = ("--env", "keys", "--tasks", 3, "--out", tmp_path / "o")
    first = called(*usual, "--temperature", "1")
    assert first.exit_code == 0 and "temperature 1" not in first.output
    alone = len(policy.asked)
    both = called(*usual, "--temperature", "1,0", "--json")
    assert {p.temperature for p in policy.asked[:alone]} == {1.0}
    assert {p.temperature for p in policy.asked[alone:]} == {0.0}, "those of 1 are not played again"
    found = json.loads(both.output)
    assert found["all"] == found["temperatures"]["0"]["all"] and found["all"]["tasks"] == 3
    read = called("--read", tmp_path / "o")
    for line in ("temperature 1: all", "temperature 0: all", "panel: keys"):
        assert line in read.output
    settings = json.loads((tmp_path / "o" / "temperature-0" / "settings.json").read_text())
    assert settings["temperature"] == 0.0


def test_another_evaluation_of_other_tasks_is_refused_before_anything_is_played(tmp_path, played):
    CliRunner().invoke(main, ["--out", str(tmp_path / "one"), "--tasks", "5"])
    called = ["--out", str(tmp_path / "two"), "--tasks", "6", "--against", str(tmp_path / "one")]
    refused = CliRunner().invoke(main, called)
    assert refused.exit_code == 2 and "this evaluation has 6, and they share 5" in refused.output
    assert len(played) == 1 and not (tmp_path / "two").exists()


def test_a_model_trained_without_earlier_reasoning_is_evaluated_as_it_was_trained(tmp_path, played):
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    tokenizer_for(FORGETFUL).save_pretrained(model)
    arguments = ["--model", str(model), "--out", str(tmp_path / "o"), "--tasks", "2"]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 2 and "actor.earlier_reasoning=keep" in refused.output
    kept = CliRunner().invoke(main, [*arguments, "actor.earlier_reasoning=keep"])
    assert kept.exit_code == 0 and played == [model]
