"""The benchmark of own environments: its environments, and the table of its medians."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from benchmarks.own_environment import FILE, WAYS, measure, table
from envs import registry
from envs.testing import check_env
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample


@pytest.mark.parametrize("kind", ["Workers", "InProcess"])
def test_its_environments_pass_and_differ_only_in_where_they_run(kind: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FILE)
    name = f"{tmp_path / 'own.py'}:{kind}"
    check_env(name)
    assert registry.in_process(name) is (kind == "InProcess")


def test_the_table_shows_medians_and_their_ratios_to_none() -> None:
    none = [(1.0, 2.0, 10), (9.0, 9.0, 10), (2.0, 4.0, 10)]
    lines = table({"none": none, "workers": [(3.0, 4.0, 10)]})
    assert lines[2] == "| none | 2.000 | 1.000 | 4.000 | 1.000 | 10 |"
    assert lines[3] == "| workers | 3.000 | 1.500 | 4.000 | 1.000 | 10 |"


class Stub:
    """An engine that answers every request with the same token until its budget is used."""

    context_length = 1024

    def __init__(self, model: Path) -> None:
        self.chat = ChatFormat(AutoTokenizer.from_pretrained(model))
        self.metrics = SimpleNamespace(generated_tokens=0)
        self.engine, self.resets, self.closed = self, 0, False

    async def reset_prefix_cache(self) -> None:
        self.resets += 1

    async def sample(self, token_ids, params):
        count = params.max_tokens
        self.metrics.generated_tokens += count
        return Sample((5,) * count, (-1.0,) * count, 0, 0, "length")

    def close(self) -> None:
        self.closed = True


def test_every_way_plays_the_same_steps_and_the_first_round_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Stub] = []

    def start(model: Path, config: object) -> Stub:
        made.append(Stub(model))
        return made[-1]

    monkeypatch.setattr("benchmarks.own_environment.VLLMPolicy.start", start)
    monkeypatch.setattr("benchmarks.own_environment.freeze_heap", lambda: None)
    asyncio.run(measure(tmp_path, requests=4, rounds=2, steps=1))
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("| ")][1:]
    assert [row.split()[1] for row in rows] == list(WAYS)
    assert all(row.endswith("| 256 |") for row in rows), "four requests of 64 tokens"
    assert made[0].closed and made[0].resets == 9
