"""The cards of models and traces."""

from pathlib import Path

import pytest

from r3l.models.model_folder import write_checksums
from r3l.models.model_path import builtin_policy
from r3l.run.bill import Usage
from r3l.run.cards import base_model, changed_settings, data_card, model_card, write_model_cards
from r3l.run.config import load
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import RunFolder
from tests.r3l.files.made import evaluation

SNAPSHOT = "/home/me/.cache/huggingface/hub/models--org--m/snapshots/abc123"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of two evaluated versions, with two models."""
    folder = RunFolder(tmp_path / "first")
    folder.path.mkdir()
    given = [
        f"model={SNAPSHOT}",
        "algorithm=grpo",
        "learner.steps=9",
        "env.options.words=2",
        "buffer.task_sampler.name=shuffled",
        "env.options.tasks=org/d@train",
    ]
    folder.write_settings(load(None, given))
    for line in (evaluation(0), StepLine(1), StepLine(4), evaluation(4)):
        folder.add_progress(line)
    folder.write_bill({"actor-0.a": Usage(sampled=1234)})
    folder.write_versions({"r3l": "1.2"})
    for name, step in {"model": 4, "best": 0}.items():
        (folder.path / name).mkdir()
        write_checksums(folder.path / name, step)
    return folder


def test_a_model_of_the_hub_is_named_as_there() -> None:
    assert base_model(SNAPSHOT) == ("org/m", "org/m at abc123")
    assert base_model("/home/me/models/mine") == ("", "the folder mine")
    builtin = ("", "builtin, the tiny policy that r3l ships")
    assert base_model("builtin") == base_model(str(builtin_policy())) == builtin


def test_each_model_gets_a_card_of_its_own_step(run: RunFolder) -> None:
    written = write_model_cards(run)
    assert [path.parent.name for path in written] == ["model", "best"]
    card = (run.path / "model" / "README.md").read_text()
    assert card.startswith("---\nbase_model: org/m\nlibrary_name: transformers\n")
    assert "# first, step 4" in card and "| base model | org/m at abc123 |" in card
    assert "| algorithm | grpo |" in card and "| optimizer steps | 4 of 9 |" in card
    assert "1,234 tokens sampled" in card and "Versions: r3l 1.2." in card
    assert "| `env.options.words` | `2` |" in card and SNAPSHOT not in card
    assert "(words=2, tasks=org/d@train), temperature" in card
    assert "Panel: the first 8 tasks of the split `eval`" in card and "## Not tried" in card
    best = (run.path / "best" / "README.md").read_text()
    assert "# first, step 0" in best and "| 0 of 9: the weights before training |" in best


def test_weights_that_were_not_evaluated_are_not_praised(run: RunFolder) -> None:
    assert "These weights, of step 7, were not evaluated." in model_card(run, 7)
    run.progress.unlink()
    assert "Not measured: the run has no evaluation." in model_card(run, 7)


def test_a_run_without_finished_models_gets_no_card(tmp_path: Path) -> None:
    assert write_model_cards(RunFolder(tmp_path)) == []


def test_traces_of_a_store_alone_have_a_card_too() -> None:
    card = data_card(None, {"sessions": 2, "retries": 0}, [0.0, 1.0])
    assert "| sessions | 2 |" in card and "retries |" not in card and "## Settings" not in card
    assert "| reward of all sessions | mean 0.5, from 0 to 1 |" in card


def test_settings_are_compared_with_the_defaults_of_their_algorithm() -> None:
    changed = changed_settings(load(None, ["algorithm=grpo", "learner.lr=1e-4", "seed=3"]))
    assert changed in (
        {"learner.lr": 1e-4, "seed": 3},
        {"algorithm.name": "grpo", "learner.lr": 1e-4, "seed": 3},
    )


ALICE = "/home/alice/secret"


def test_a_card_names_no_folder_host_or_secret(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "first")
    folder.path.mkdir()
    given = load(None, ["algorithm=grpo", "learner.schedule=cosine", "learner.lora.rank=4"])
    secrets = {"key": "alicekey", "url": "http://alice:1", "files": [f"{ALICE}/a"], "host": "alice"}
    env = given.env.model_copy(
        update={
            "name": f"{ALICE}/own.py:Door",
            "options": secrets | {"size": 3, "way": {"to": "../alice"}},
            "others": {"alice/b.py:B": {"size": 4}},
        }
    )
    algorithm = given.algorithm.model_copy(update={"name": f"{ALICE}/alg.py:A"})
    learner = given.learner.model_copy(update={"on_checkpoint": "alice", "betas": (0.5, 0.9)})
    given = given.model_copy(update={"env": env, "algorithm": algorithm, "learner": learner})
    folder.settings = lambda: given  # type: ignore[method-assign]
    folder.add_progress(evaluation(0))
    for card in (model_card(folder, 0), data_card(folder, {"sessions": 1}, [1.0])):
        assert "alice" not in card and ALICE not in card
        assert (
            "| algorithm | alg.py:A |" in card and "| environment | own.py:Door + b.py:B |" in card
        )
        assert (
            "| `learner.schedule` | `cosine` |" in card and "| `learner.lora.rank` | `4` |" in card
        )
        assert (
            "| `learner.betas` | `[0.5, 0.9]` |" in card and "| `env.options.size` | `3` |" in card
        )
        left = "env.name, env.options.files, env.options.host, env.options.key, env.options.url, "
        assert left in card and "algorithm.name" in card and "learner.on_checkpoint" in card
