"""`r3l-learner warmup`."""

import json
import shlex
import shutil

import pytest
from click.testing import CliRunner
from transformers import AutoModelForCausalLM

from envs import registry
from learner.warmup import warmup
from learner.warmup.cli import warmup_command
from learner.warmup.recipe import Recipe
from r3l.errors import UserError
from r3l.models.model_path import builtin_policy
from r3l.run.config import load
from tests.r3l.rollout.test_chat import FORGETFUL


def test_the_command_regenerates_the_shipped_model_and_tokenizer(tmp_path):
    made = json.loads((builtin_policy() / "warmup.json").read_text())
    while isinstance(made["from"], dict):
        made = made["from"]
    arguments = made["command"].split()[2:]
    arguments[arguments.index("--out") + 1] = str(tmp_path / "tiny")
    result = CliRunner().invoke(warmup_command, [*arguments, "--steps", "3"])
    assert result.exit_code == 0, result.output
    assert "warmup step 3/3" in result.output
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "tiny" / name).read_text() == (builtin_policy() / name).read_text(), name
    shipped = AutoModelForCausalLM.from_pretrained(builtin_policy()).state_dict()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny").state_dict()
    assert {k: (v.shape, v.dtype) for k, v in again.items()} == {
        k: (v.shape, v.dtype) for k, v in shipped.items()
    }


def test_dials_make_the_lessons_the_record_and_the_commands_that_follow(tmp_path):
    out = tmp_path / "out"
    arguments = ["--env", "workshop", "--set", "stations=2", "--set", "words=3"]
    arguments += ["--set", "summary=brief", "--certainty", "0.5", "--out", str(out)]
    arguments += ["--steps", "1", "--tokens-per-batch", "400"]
    result = CliRunner().invoke(warmup_command, arguments)
    assert result.exit_code == 0, result.output
    world = "env.options.stations=2 env.options.words=3 env.options.summary=brief"
    assert f" r3l-launch --preset demo --env workshop --model {out} {world}" in result.output
    record = json.loads((out / "warmup.json").read_text())
    given = {"stations": 2, "words": 3, "summary": "brief"}
    assert record["skill"]["certainty"] == 0.5 and "quality" not in record
    options = registry.all_options("workshop", given)
    assert record["worlds"] == [{"env": "workshop", "options": options}]


def test_a_policy_for_several_worlds_is_offered_to_a_run_of_all_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "warmup", lambda recipe, out: None)
    out = tmp_path / "out"
    arguments = ["--env", "workshop", "--env", "keys", "--out", str(out)]
    said = CliRunner().invoke(warmup_command, arguments).output
    assert said.endswith(f"""--env workshop --model {out} 'env.others={{"keys": {{}}}}'\n""")
    (override,) = [word for word in shlex.split(said) if word.startswith("env.others")]
    assert load(None, [override]).env.names == ("workshop", "keys")


def test_a_model_whose_template_forgets_reasoning_is_warmed_up_on_request(tmp_path):
    start, out = tmp_path / "start", tmp_path / "out"
    shutil.copytree(builtin_policy(), start)
    (start / "chat_template.jinja").write_text(FORGETFUL)
    arguments = ["--env", "keys", "--model", str(start), "--out", str(out)]
    arguments += ["--steps", "1"]
    refused = CliRunner().invoke(warmup_command, arguments)
    assert "--earlier-reasoning keep" in str(refused.exception) and not out.exists()
    arguments += ["--earlier-reasoning", "keep"]
    assert CliRunner().invoke(warmup_command, arguments).exit_code == 0
    made = json.loads((out / "warmup.json").read_text())
    assert made["command"].endswith("--earlier-reasoning keep")


def test_the_command_refuses_a_full_folder_a_missing_model_and_an_unknown_world(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(UserError, match=r"--out .*is not empty"):
        CliRunner().invoke(
            warmup_command,
            ["--env", "keys", "--out", str(tmp_path)],
            catch_exceptions=False,
        )
    with pytest.raises(UserError, match=r"--model .*: no config.json"):
        warmup.warmup(Recipe(("keys",), str(tmp_path / "none")).resolved(), tmp_path / "out")
    with pytest.raises(UserError, match="env 'nowhere': unknown"):
        CliRunner().invoke(
            warmup_command,
            ["--env", "nowhere", "--out", str(tmp_path / "out")],
            catch_exceptions=False,
        )
    assert not (tmp_path / "out").exists()
    for wrong in (["--steps", "0"], ["--lr", "-3"], ["--tokens-per-batch", "0"]):
        arguments = ["--env", "keys", "--out", str(tmp_path / "out"), *wrong]
        assert CliRunner().invoke(warmup_command, arguments).exit_code == 2
