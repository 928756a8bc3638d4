"""Runs where success is rare: which policies count, the order of runs, what is left for later."""

import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from lab.quality import Quality
from lab.real_model import rare, rare_page, training, worlds
from lab.real_model.__main__ import main
from lab.real_model.training import Stopped
from lab.real_model.worlds import LAKE, WORLDS, Warm
from lab.results.lines import append, read_lines
from r3l.errors import UserError

PROBE = {"success": 0.01, "told": 0.95, "guided": 0.4, "restart": 0.02, "parsed": 1.0}


def test_a_warm_policy_counts_by_what_its_world_asks_for() -> None:
    what = WORLDS["what"]
    assert what.counts(PROBE) and what.counts(PROBE | {"success": 0.3})
    assert not what.counts(PROBE | {"told": 0.89})
    assert not what.counts(PROBE | {"guided": 0.29})
    assert LAKE.counts(PROBE) and LAKE.counts(PROBE | {"told": 0.0})
    assert not LAKE.counts(PROBE | {"success": 0.004})
    assert not LAKE.counts(PROBE | {"success": 0.021})
    assert not LAKE.counts(PROBE | {"restart": 0.31})  # guidance gains 0.09


def test_the_first_seed_of_everything_comes_before_the_second_of_anything() -> None:
    runs = [(seed, world.name, variant) for seed, world, variant in rare.wanted()]
    assert len(runs) == 3 * (5 + 5 + 4 * 3)
    assert [seed for seed, *_ in runs] == sorted([1, 2, 3] * 22)
    assert runs[0] == (1, "what", "r3l")
    assert not {variant for *_, variant in runs} & set(WORLDS["what"].controls)
    named = [*rare.wanted([], ["another", "r3l"], [1])]
    assert [(world.name, variant) for _, world, variant in named] == [
        ("what", "r3l"), ("what", "another"), ("where", "r3l"), ("lake", "r3l"),
        ("kitchen_narrow", "r3l"), ("kitchen", "r3l"), ("kitchen_sparse", "r3l"),
    ]  # fmt: skip
    some = [*rare.wanted(["lake"], ["grpo", "unsolved"], [2])]
    assert [(seed, world.name, variant) for seed, world, variant in some] == [(2, "lake", "grpo")]


def measured(warm: Warm, monkeypatch: pytest.MonkeyPatch, **successes: float) -> list[str]:
    """Lets probes find these successes, by the steps of the warm-up; returns what was made."""
    made: list[str] = []

    async def probe(self: Warm, world: Any, model: Path, some: Any) -> AsyncGenerator[Any]:
        made.append(model.name)
        for options in some:
            yield options, PROBE | {"success": successes[f"_{model.name.split('-')[1]}"]}

    monkeypatch.setattr(Warm, "_measured", probe)
    monkeypatch.setattr(worlds, "warm_up", lambda out, words, dry_run: made.append(words[-3]))
    return made


def test_a_policy_that_does_not_count_is_warmed_for_longer_and_a_strict_world_has_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm = Warm(tmp_path, tmp_path / "rare.jsonl", "M")
    made = measured(warm, monkeypatch, _60=0.3, _120=0.01)
    model, steps, options = warm.policy(LAKE, 1)
    assert (model.name, steps, options) == ("lake-120-1", 120, LAKE.trained[0])
    assert len(read_lines(warm.lines)) == len(LAKE.trained) + 1  # up to the first that counts
    assert warm.policy(LAKE, 1) == (model, steps, options)
    assert made.count("lake-60-1") == made.count("lake-120-1") == 1  # later they are read
    measured(warm, monkeypatch, _60=0.3, _120=0.3)
    with pytest.raises(UserError, match="world lake, seed 2: no option counts"):
        warm.policy(LAKE, 2)


def test_a_world_may_have_the_warm_policies_of_another(tmp_path: Path) -> None:
    warm = Warm(tmp_path, tmp_path / "rare.jsonl", "M")
    kitchens = [warm.model(WORLDS[name], 120, 2) for name in ("kitchen", "kitchen_sparse")]
    assert kitchens[0] == kitchens[1] == tmp_path / "policies" / "kitchen-120-2"


def test_a_probe_ends_with_its_plain_attempts_if_they_succeed_too_often_or_too_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    successes, probed = iter([0.09, 0.003, 0.013]), []

    @asynccontextmanager
    async def engine(*_: Any) -> AsyncGenerator[None]:
        yield None

    async def first_success(*_: Any, actor: Any) -> float:
        return next(successes)

    async def measure(policy: Any, env: str, count: int, own: Any, *, actor: Any) -> Quality:
        probed.append(own["size"])
        return Quality(
            count, **PROBE | {"success": 0.03, "reward": 0, "pivots": 1, "reflection_cost": 1}
        )

    for name, value in (("own_engine", engine), ("first_success", first_success)):
        monkeypatch.setattr(worlds, name, value)
    monkeypatch.setattr(worlds, "measure", measure)
    warm = Warm(tmp_path, tmp_path / "rare.jsonl", "M")
    found = warm.probes(LAKE, Path("builtin"), 1, 60)
    assert [line["success"] for _, line in found] == [0.09, 0.003, 0.013]
    assert [line.get("guided") for _, line in found] == [None, None, PROBE["guided"]]
    assert probed == [6] and [LAKE.counts(line) for _, line in found] == [False, False, True]
    assert warm.probes(LAKE, Path("builtin"), 1, 60) == found  # from the lines
    assert "| 0.090 | – | – | – | – | no |" in rare_page.probes([line for _, line in found])


def test_a_run_that_is_stopped_is_left_for_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    warm = Warm(tmp_path, tmp_path / "rare.jsonl", "M")
    measured(warm, monkeypatch, _200=0.01)
    given, stopped = [], [True]

    def train(model: Path, variant: str, *rest: Any, minutes: float) -> dict[str, Any]:
        given.append((variant, minutes, *rest[2][:2]))
        if variant == "r3l" and stopped.pop():
            raise Stopped("r3l: stopped at step 3; the same command continues it")
        return {"evaluations": [[0, 0.1]], "curve": {}}

    monkeypatch.setattr(rare, "train", train)
    runs = [*rare.wanted(["where"], ["r3l", "grpo"], [1])]
    assert not rare.make(runs, warm, "1cpu", [], 5.0)
    assert "continues it" in capsys.readouterr().err
    stopped.append(False)
    assert rare.make(runs, warm, "1cpu", [], 5.0)
    assert [variant for variant, *_ in given] == ["r3l", "grpo", "r3l"]
    assert given[0][1:] == (5.0, "--learner", "1cpu")
    lines = [line for line in read_lines(warm.lines) if line["kind"] == "run"]
    assert [(line["variant"], line["policy"]) for line in lines] == [("grpo", 1), ("r3l", 1)]
    assert lines[0]["options"] == '{"hint": "where"}' and lines[0]["warm_steps"] == 200


def test_a_run_ends_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[Any] = []
    real = subprocess.Popen

    def popen(command: list[str], **more: Any) -> Any:
        began.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **more))
        return began[-1]

    monkeypatch.setattr(training.subprocess, "Popen", popen)
    monkeypatch.setattr(training, "POLL_S", 0.05)
    monkeypatch.setattr(training, "usage", lambda pid: ({},))
    empty = SimpleNamespace(history=lambda: SimpleNamespace(steps=[]))
    monkeypatch.setattr(training, "RunFolder", lambda folder: empty)
    with pytest.raises(Stopped, match="stopped at step 0; the same command continues it"):
        training.train(tmp_path, "grpo", 1, tmp_path / "run", minutes=0.002)
    assert began[0].poll() is not None


def run(variant: str, seed: int, *successes: float) -> dict[str, Any]:
    steps = len(successes)
    costs = [100.0 * (step + 1) for step in range(steps)]
    return {
        "kind": "run", "machine": "M", "world": "what", "variant": variant, "seed": seed,
        "policy": seed, "warm_steps": 200, "evaluations": [[0, 0.01], [steps, 0.9]],
        "curve": {"tokens": costs, "cpu": costs, "success_base": [*successes]},
    }  # fmt: skip


def test_the_page_has_costs_and_the_ratios_of_arms_from_one_policy(tmp_path: Path) -> None:
    lines = [run("r3l", 1, 0.0, 1.0), run("no_reflect", 1, 0.0, 0.0, 0.5, 1.5), run("grpo", 2, 0.1)]
    probe = PROBE | {"kind": "probe", "machine": "M", "world": "lake", "seed": 1,
                     "warm_steps": 60, "options": '{"size": 4}'}  # fmt: skip
    for line in (*lines, probe):
        append(tmp_path / "rare.jsonl", line)
    text = rare_page.render(read_lines(tmp_path / "rare.jsonl"))
    assert "| what | R³L | 0.010 | 0.900 | 2 | 200 | 200 | 1 |" in text
    assert "| what | GRPO without reference | 0.010 | 0.900 | – | – | – | 2 |" in text
    half = " | ".join(["0.50 (one seed)"] * 3)
    assert f"| what | R³L | R³L without reflection | {half} | 1 |" in text
    assert "| lake | M | 1 | 60 | size: 4 | 0.010 | 0.950 | 0.400 | 0.020 | 1.000 | yes |" in text


def test_an_interval_is_over_three_warm_policies_or_more() -> None:
    two = [run(name, seed, *[0.0] * (2 * seed), 3.0) for name in ("r3l",) for seed in (1, 2)]
    two += [run("no_reflect", seed, *[0.0] * 6, 3.0) for seed in (1, 2)]
    assert "–" not in rare_page.ratios(two, lambda world: world.variants).splitlines()[-1]
    three = [*two, run("r3l", 3, 0.0, 3.0), run("no_reflect", 3, *[0.0] * 6, 3.0)]
    [shown] = rare_page.ratios(three, lambda world: world.variants).splitlines()[2:]
    assert shown.count("–") == 3 and shown.endswith("| 3 |")


def test_an_arm_whose_attempts_are_demonstrated_has_no_costs() -> None:
    lines = [run("supervised", 1, 1.0), run("no_reflect", 1, 0.0, 3.0)]
    text = rare_page.render(lines)
    assert "| what | supervised on right answers | 0.010 | 0.900 | – | – | – | 1 |" in text
    assert "| what | supervised on right answers | R³L without" not in text


def test_ended_policies_are_shown_beside_the_warm_ones_and_with_their_differences() -> None:
    def final(variant: str, success: float, **more: Any) -> dict[str, Any]:
        made = {"kind": "final", "machine": "M", "world": "what", "seed": 1, "policy": 1}
        shares = {"success": success, "pass": 1.0, "greedy": success + 0.1}
        return made | {"variant": variant, "warm_steps": 200, "options": "{}"} | shares | more

    changed = dict.fromkeys(("success", "parsed", "pivots", "guided", "restart"), 0.25)
    text = rare_page.render(
        [final("warm", 0.01), final("r3l", 0.8, changed=changed), final("no_reflect", 0.5)]
    )
    assert "| what | warm policy, untrained | 0.010 | 0.110 | 1.000 | 1 |" in text
    assert "| what | R³L | R³L without reflection | +0.300 | +0.300 | +0.000 | 1 |" in text
    assert "| what | R³L | 0.250 | 0.250 | 0.250 | 0.250 | 0.250 | 1 |" in text


def test_the_page_is_that_of_the_lines() -> None:
    assert rare_page.PAGE.read_text(encoding="utf-8") == rare_page.render(read_lines(rare.FILE))


def test_every_world_has_a_teacher_and_settings_that_are_accepted() -> None:
    for world in WORLDS.values():
        for options in world.trained:
            warm = Warm(Path(), Path(), "M")
            config = warm.configured(world, Path("builtin"), options)
            assert config.env.name == world.env
            assert {name: config.env.options[name] for name in options} == dict(options)


def test_a_results_file_of_another_name_is_refused_before_anything_runs(tmp_path: Path) -> None:
    words = ["rare", "--out", str(tmp_path), "--lines", str(tmp_path / "seed-2.jsonl")]
    words += ["--dry-run"]  # nothing runs, even if it is not refused
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 2
    assert "seed-2.jsonl: its name must be rare.jsonl" in refused.output
    assert not [*tmp_path.iterdir()]
