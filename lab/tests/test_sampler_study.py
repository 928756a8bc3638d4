"""The study of samplers: its settings, and what ends a run."""

import asyncio
import json

from click.testing import CliRunner

from lab import sampler_study
from lab.sampler_study import CELL, SAMPLERS, main
from r3l.run import config as configuration


def test_the_samplers_are_compared_with_equal_settings():
    own = [(f"buffer.sampler={name}", "seed=3", "learner.steps=9") for name in SAMPLERS]
    configs = [configuration.load(None, [*CELL, *each]).model_dump() for each in own]
    for config in configs:
        config["buffer"]["sampler"].pop("name")
    assert all(config == configs[0] for config in configs)
    assert configs[0]["buffer"]["sampler"]["replay_share"] == 0.75


def test_a_run_that_has_a_line_is_not_made_again(tmp_path, monkeypatch):
    async def train(config):
        return [{"success": 1.0}] * config.seed

    monkeypatch.setattr(sampler_study, "train", train)
    file = tmp_path / "lines"
    file.write_text(json.dumps({"sampler": "uniform", "seed": 3, "steps": []}) + "\n")
    for _ in range(2):
        done = CliRunner().invoke(main, ["--out", str(file), "--seed", "3"])
        assert done.exit_code == 0 and "uniform, seed 3: there" in done.output
    made = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["sampler"] for line in made] == ["uniform", "fifo", *SAMPLERS[2:]]
    assert len(made[1]["steps"]) == 3


def test_a_step_replays_what_was_trained_and_tells_ages_and_spreads(monkeypatch):
    monkeypatch.setattr(sampler_study, "LIMIT", 2)
    small = (
        "learner.groups_per_step=2",
        "algorithm.group_size=2",
        "buffer.sampler.replay_share=0.5",
    )
    config = configuration.load(None, [*CELL, *small, "buffer.sampler=uniform"])
    first, second = asyncio.run(sampler_study.train(config))
    assert first["replayed"] == [] and len(second["replayed"]) == 1
    assert second["age"] == [1] and len(second["spread"]) == 1 and 0 <= second["success"] <= 1
