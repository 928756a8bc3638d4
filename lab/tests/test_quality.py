"""The quality of the shipped policy, and the command that measures one."""

import asyncio
import json
import shutil
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from lab import quality as command
from lab.quality import measure, quality
from lab.results.alternate import FreePolicy
from lab.warmed import warmed_for
from learner.warmup.recipe import RECORD
from r3l.errors import EngineDead
from r3l.models.model_path import builtin_policy
from r3l.rollout import reflection


@pytest.mark.nightly
def test_the_shipped_policy_reads_reflects_and_follows_advice_but_does_not_know_the_world():
    found = asyncio.run(measure(FreePolicy("builtin"), "workshop", 64, {}))
    assert found.success <= 0.05
    assert found.reward == found.success  # rewards are 0 or 1
    assert found.parsed >= 0.85
    assert found.pivots >= 0.7
    assert found.guided >= found.restart + 0.15
    assert found.told >= 0.8  # 0.89 on average, with a standard deviation of 0.04
    assert 1.5 <= found.reflection_cost <= 3.5


@pytest.fixture
def warmed(tmp_path, monkeypatch):
    """A warmed-up folder that was not measured, played in this process."""

    @asynccontextmanager
    async def engine(config, log):
        yield FreePolicy("builtin")

    monkeypatch.setattr(command, "own_engine", engine)
    folder = tmp_path / "warm"
    shutil.copytree(builtin_policy(), folder)
    record = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps({k: v for k, v in record.items() if k != "quality"}))
    return folder


def test_the_quality_is_printed_and_kept_in_the_record(warmed):
    assert warmed_for(warmed)[0].quality == {}
    result = CliRunner().invoke(quality, [str(warmed), "--tasks", "4"])
    assert result.exit_code == 0, result.output
    assert "workshop (4 tasks): success" in result.output and "reflection_cost" in result.output
    assert warmed_for(warmed)[0].quality["tasks"] == 4


def test_outcome_first_reaches_the_reflections_and_is_not_recorded(warmed, monkeypatch):
    asked = []
    schema = reflection.json_schema

    def noted(*steps, outcome_first=False):
        asked.append(outcome_first)
        return schema(*steps, outcome_first=outcome_first)

    monkeypatch.setattr(reflection, "json_schema", noted)
    result = CliRunner().invoke(quality, [str(warmed), "--tasks", "2", "--outcome-first"])
    assert result.exit_code == 0, result.output
    assert "pivots" in result.output and asked == [True, True]
    assert warmed_for(warmed)[0].quality == {}


def test_a_policy_is_whole_although_it_could_not_be_measured(warmed, monkeypatch):
    @asynccontextmanager
    async def none(config, log):
        raise EngineDead("the engine did not start")
        yield

    before = (warmed / RECORD).read_bytes()
    monkeypatch.setattr(command, "own_engine", none)
    result = CliRunner().invoke(quality, [str(warmed)])
    assert isinstance(result.exception, EngineDead) and (warmed / RECORD).read_bytes() == before
    other = CliRunner().invoke(quality, [str(warmed.parent)])
    assert other.exit_code == 2


def test_few_groups_are_played_at_once(monkeypatch):
    playing, most = 0, 0

    async def explore(*_, **options):
        nonlocal playing, most
        playing += 1
        most = max(most, playing)
        await asyncio.sleep(0)
        playing -= 1
        return SimpleNamespace(trajectories=[])

    monkeypatch.setattr(command.exploring, "explore", explore)
    monkeypatch.setattr(command, "AT_ONCE", 3)
    assert asyncio.run(command.first_success(None, "workshop", 10, {})) == 0.0
    assert most == 3
