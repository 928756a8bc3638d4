"""A budget has room for a step, or the run is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.preflight import FirstStep
from launch.checks.budgets import (
    RECENT,
    check_amount_is_used,
    check_first_step_fits,
    check_what_is_left,
)
from launch.topology.machines import ActorPlace, Machine
from launch.topology.placement import Ranks, Topology
from r3l.errors import UserError
from r3l.run.bill import Usage
from r3l.run.config import load
from r3l.run.files import progress_lines
from r3l.run.files.progress_lines import StepLine
from r3l.run.files.run_folder import RunFolder


def used(run: Path, *tokens: float) -> RunFolder:
    """A run that had used so many tokens after each of its steps."""
    folder = RunFolder(run)
    for step, count in enumerate(tokens, 1):
        tags = {"bill/sampled_tokens": count, "bill/read_tokens": 0.0, "bill/trained_tokens": 0.0}
        folder.add_progress(StepLine(step, tags))
        folder.write_bill({"actor-0.a": Usage(sampled=count)})
    return folder


def test_a_run_whose_budget_is_used_up_is_not_resumed(tmp_path: Path) -> None:
    run = used(tmp_path, 400, 700, 1000)
    with pytest.raises(UserError) as error:
        check_what_is_left(load(None, ["budget.tokens=1000"]), run)
    assert str(error.value) == (
        "budget.tokens=1000: 1000 of it are used, and a step takes about 300; give at least 1300, "
        "or budget.tokens=null for no limit"
    )
    check_what_is_left(load(None, ["budget.tokens=1300"]), run)
    check_what_is_left(load(None), run)


def test_an_amount_that_only_gpus_use_is_refused_without_gpus() -> None:
    def check(*settings: str, gpus: tuple[str, ...] = (), actors: int = 1) -> None:
        ranks = (Ranks("here", 1, gpus),)
        places = (ActorPlace("here"),) * actors
        config = load(None, ["budget.amount=5", "cost.per_gpu_hour=2", *settings])
        check_amount_is_used(config, Topology((Machine("here"),), "cpu", ranks, places))

    with pytest.raises(UserError, match=r"^budget\.amount=5: only GPUs have a price, and this run"):
        check()
    check("cost.per_cpu_hour=0.1")
    check("budget.amount=null")
    check(gpus=("0",))
    check(actors=0)  # those that join may have GPUs


def test_only_the_end_of_a_long_run_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = used(tmp_path, *range(1, 41)), list[Mapping[str, Any]]()
    from_json = progress_lines.from_json

    def counted(line: Mapping[str, Any]) -> progress_lines.ProgressLine:
        read.append(line)
        return from_json(line)

    monkeypatch.setattr(progress_lines, "from_json", counted)
    check_what_is_left(load(None, ["budget.tokens=41"]), run)
    assert len(read) == RECENT


def test_a_rest_that_is_less_than_a_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a step takes about 300; give at least 1300"):
        check_what_is_left(load(None, ["budget.tokens=1299"]), used(tmp_path, 400, 700, 1000))


def test_what_a_step_takes_is_not_known_before_the_second(tmp_path: Path) -> None:
    run = used(tmp_path, 400)
    check_what_is_left(load(None, ["budget.tokens=401"]), run)
    with pytest.raises(
        UserError, match=r"budget\.tokens=400: 400 of it are used; give at least 404"
    ):
        check_what_is_left(load(None, ["budget.tokens=400"]), run)


def spending(run: Path, hours: float, **used: float) -> RunFolder:
    """A run whose three steps took as much of each as `used` says, and `hours` each."""
    folder, tags = RunFolder(run), {"bill/hours": hours} | {f"bill/{n}": v for n, v in used.items()}
    tags = dict.fromkeys(("bill/sampled_tokens", "bill/read_tokens"), 0.0) | tags
    for step in (1, 2, 3):
        folder.add_progress(StepLine(step, {name: step * each for name, each in tags.items()}))
    cpu_s = 3 * used.get("cpu_s", 0.0)
    folder.write_bill({"learner": Usage(cpu_s=cpu_s, wall_s=3 * 3600 * hours)})
    return folder


@pytest.mark.parametrize("hours", [0.33433, 1.004, 17.7777, 123.4567, 0.00012345])
def test_the_advised_limit_is_enough(tmp_path: Path, hours: float) -> None:
    run, given = spending(tmp_path, hours), "budget.hours=1e-6"
    with pytest.raises(UserError) as error:
        check_what_is_left(load(None, [given]), run)
    advised = str(error.value).split("give at least ")[1].split(",")[0]
    check_what_is_left(load(None, [f"budget.hours={advised}"]), run)
    assert float(advised) <= 4 * hours * 1.01 + 1


def test_a_step_is_priced_as_its_run_is(tmp_path: Path) -> None:
    folder = spending(tmp_path, 1.0, cpu_s=3600.0, amount=100.0)  # at 100 an hour, then
    cheap = ["cost.per_cpu_hour=1", "budget.amount=4"]
    check_what_is_left(load(None, cheap), folder)
    with pytest.raises(UserError, match=r"amount=3.9: 3 of it are used, and a step takes about 1;"):
        check_what_is_left(load(None, [*cheap[:1], "budget.amount=3.9"]), folder)


def test_a_bill_that_began_again_takes_nothing_back(tmp_path: Path) -> None:
    run = used(tmp_path, 900, 100)
    check_what_is_left(load(None, ["budget.tokens=101"]), run)


def test_advised_tokens_are_a_whole_number(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give at least 51, or"):
        check_what_is_left(load(None, ["budget.tokens=50"]), used(tmp_path, 50))


def test_a_budget_below_the_prompts_of_a_step_is_refused_before_the_start() -> None:
    steps = {"a": FirstStep(100, 8, 0), "b": FirstStep(90, 8, 0)}
    asks = ["learner.groups_per_step=4", "algorithm=grpo", "algorithm.group_size=8"]
    check_first_step_fits(load(None, [*asks, "budget.tokens=1456"]), steps)
    with pytest.raises(UserError, match=r"budget\.tokens=1455: a step takes 1456 or more: 16 atte"):
        check_first_step_fits(load(None, [*asks, "budget.tokens=1455"]), steps)
    priced = [*asks, "cost.per_million_tokens=1000", "budget.amount=1"]
    with pytest.raises(UserError, match=r"budget\.amount=1: a step takes 1\.46 or more"):
        check_first_step_fits(load(None, priced), steps)
    check_first_step_fits(load(None, [*asks, "budget.tokens=1", "learner.steps=0"]), steps)
