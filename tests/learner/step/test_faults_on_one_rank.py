"""Trouble on one rank of two: a loss or gradient that is not a number, no memory, a restart."""

import json
import math
from pathlib import Path

import pytest

from r3l.errors import RestartNeeded
from tests.learner.ranks import on_two_ranks
from tests.learner.step.faulty import Bench, out_of_memory, resumed, watch_all

VARIANTS = ("0:float32", "1:bfloat16", "3:float32", "3:bfloat16:4")
EXACT = ("loss", "grad_norm", "lr", "entropy", "behaviour_kl")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """The folder in which two ranks wrote what they saw, for all variants."""
    out = tmp_path_factory.mktemp("seen")
    on_two_ranks(watch_all, out, model_folder, *VARIANTS)
    return out


def ranks(seen: Path, variant: str) -> list[dict[str, list[dict[str, float]]]]:
    folder = seen / variant.replace(":", "-")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.system
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_nan_on_one_rank_is_skipped_by_both_and_changes_nothing(seen: Path, variant: str) -> None:
    for rank in ranks(seen, variant):
        assert [step["applied"] for step in rank["nan"]] == [False, False]
        assert math.isnan(rank["nan"][0]["loss"]) and math.isfinite(rank["nan"][1]["loss"])
        assert rank["untouched"] is True
        for ours, theirs in zip(rank["broken"][:4], rank["unbroken"][:4], strict=True):
            assert [ours[n] for n in EXACT] == [theirs[n] for n in EXACT]


@pytest.mark.system
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_restored_checkpoint_goes_on_bit_for_bit(seen: Path, variant: str) -> None:
    for rank in ranks(seen, variant):
        resumed = rank["resumed"][variant[0]]
        for ours, theirs in zip(resumed, rank["unbroken"][2:], strict=True):
            assert [ours[n] for n in EXACT] == [theirs[n] for n in EXACT]


@pytest.mark.system
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_of_two_ranks_goes_on_under_other_stages_and_with_one_rank(
    seen: Path, model_folder: Path, variant: str
) -> None:
    rank = ranks(seen, variant)[0]
    bench = Bench(model_folder, *variant.split(":"))
    saved = seen / variant.replace(":", "-") / "checkpoints" / "step-000002"
    alone = {stage: resumed(bench, saved, stage) for stage in (int(variant[0]), 0)}
    assert len(rank["resumed"]) >= 3
    exact = 1e-4 if "float32" in variant else 2e-2
    for steps in (*rank["resumed"].values(), *alone.values()):
        for ours, theirs in zip(steps, rank["unbroken"][2:], strict=True):
            for name in ("loss", "lr", "entropy", "behaviour_kl"):
                assert ours[name] == pytest.approx(theirs[name], rel=exact), name


@pytest.mark.system
@pytest.mark.parametrize("variant", VARIANTS[:2])
def test_out_of_memory_on_one_rank_halves_the_budget_on_both_and_the_step_is_done(
    seen: Path, variant: str
) -> None:
    for rank in ranks(seen, variant):
        last, expected = rank["broken"][4], rank["unbroken"][4]
        assert last["out_of_memory"] >= 1 and last["applied"]
        assert last["tokens_per_micro_batch"] < 512
        assert last["loss"] == pytest.approx(expected["loss"], rel=1e-3 if "b" in variant else 1e-5)


def test_out_of_memory_under_zero_stage_2_restarts_the_learner_with_the_smaller_budget(
    model_folder: Path,
) -> None:
    bench = Bench(model_folder, "2", "float32")
    with pytest.raises(RestartNeeded, match="256") as caught:
        bench.steps(bench.trainer(), 1, out_of_memory)
    assert caught.value.facts["tokens_per_micro_batch"] == 256
