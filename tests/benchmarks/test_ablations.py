"""The table's runs: one real step of two variants, resumed; the page from made-up records."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from benchmarks.ablations.__main__ import VARIANTS, main
from benchmarks.ablations.table import render
from envs.registry import task_source
from learner.step.batch import rows_of
from learner.step.trainer import Trainer
from learner.warmup import lessons, tiny_policy
from r3l import config as configuration
from r3l.records import Group, SlotResult

pytestmark = pytest.mark.system

SMALL = ["learner.groups_per_step=1", "eval.tasks=2", "actor.max_reflection_tokens=12"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    world = lessons.demonstrating("workshop")
    tokenizer = tiny_policy.build_tokenizer(lessons.texts(world))
    tiny_policy.build_model(tokenizer, seed=0, hidden=32, layers=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(model: Path, out: Path, *arguments: str, tokens: int = 1) -> str:
    shared = ["--seeds", "1", "--tokens", str(tokens), "--model", str(model), "--out", str(out)]
    result = CliRunner().invoke(main, [*shared, *arguments, *SMALL])
    return f"{result.exit_code} {result.output}"


def test_runs_are_made_once_and_the_page_shows_them(model_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    said = run(model_folder, out, "--only", "r3l,grpo")
    assert said.startswith("0 ") and said.count("done") == 2, said
    lines = out.with_suffix(".jsonl").read_text().splitlines()
    records = {record["name"]: record for record in map(json.loads, lines)}
    r3l, grpo = records["r3l"], records["grpo"]
    assert grpo["steps"] == 1 and grpo["attempts"] == 8
    assert grpo["curve"][0]["tokens"] == grpo["tokens"] > 0
    assert r3l["attempts"] == 4 and r3l["curve"][0]["trigger_rate"] == 0
    assert f"| GRPO | {grpo['success']:.3f} | {grpo['reward']:.3f} | 1 | 8 |" in out.read_text()

    assert run(model_folder, out, "--only", "r3l,grpo") == "0 "
    assert out.with_suffix(".jsonl").read_text().splitlines() == lines
    other = run(model_folder, out, "--only", "r3l", tokens=2)
    assert other.startswith("2 ") and "another model, budget or settings" in other


def test_the_sampler_is_the_trainer_of_the_step_before(model_folder: Path) -> None:
    from benchmarks.ablations import alternate

    config = configuration.load(None, [f"model={model_folder}", "algorithm=opmd", "learner.lr=0.1"])
    algorithm = config.algorithm.build()
    trainer = Trainer(model_folder, config.learner, algorithm)
    policy = alternate.sampler(model_folder, seed=0)
    tasks = task_source("workshop").tasks("train", 1)
    gaps = []
    for copied in (True, False, False):
        groups = asyncio.run(alternate.explore(tasks, policy, config, algorithm.plan()))
        gaps.append(
            trainer.step(rows_of(rewarded(groups), algorithm)).metrics["learner/behaviour_kl"]
        )
        if copied:
            alternate.copy_weights(trainer, policy)
    assert max(gaps[:2]) < 1e-6 < 1e-2 < gaps[2] and policy.version == 1


def test_an_unknown_variant_is_named(model_folder: Path, tmp_path: Path) -> None:
    said = run(model_folder, tmp_path / "results.md", "--only", "r3l,ppo")
    assert said.startswith("2 ") and "'ppo'" in said and ", ".join(VARIANTS) in said


def test_the_page_shows_mean_spread_and_course() -> None:
    labels = {"r3l": "R³L", "grpo": "GRPO"}
    facts = {"command": "c", "tokens": "10", "tasks": 100, "temperature": 0.4, "jobs": 2}
    course = [(2, 0.2), (4, 0.4), (6, 0.5), (8, 0.6), (10, 0.8)]
    records = [
        {"name": "r3l", "success": success, "reward": success, "seconds": 60}
        | {"steps": 5, "attempts": 40, "tokens": 10}
        | {"curve": [point(tokens, share) for tokens, share in course]}
        for success in (0.5, 0.7)
    ]
    page = render(records, labels, cores=2, **facts)
    spread = "0.600 ± 0.141"
    assert f"| R³L | {spread} | {spread} | 5 ± 0 | 40 ± 0 | 10 ± 0 | 60 ± 0 | 2 |" in page
    assert "| trigger | 0.200 ± 0.000 | 0.400 ± 0.000 | 0.500 ± 0.000 | 0.600 ± 0.000 |" in page
    assert "| improvement | – | – | – | – | – |" in page
    assert "to 0.050." in page and "| GRPO | – |" in page


def point(tokens: int, share: float) -> dict[str, float | None]:
    named = {"success_base": share, "trigger_rate": share, "improvement_rate": None}
    return {"tokens": tokens, **named}


def rewarded(groups: list[Group]) -> list[Group]:
    """The groups as if every second attempt had succeeded."""

    def with_reward(result: SlotResult) -> SlotResult:
        trajectory = replace(result.trajectory, reward=float(result.slot % 2))
        return replace(result, trajectory=trajectory)

    return [replace(g, results=tuple(map(with_reward, g.results))) for g in groups]
