"""Algorithms compared on the same stored groups."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from learner.cli import main
from learner.offline.compare import compare, cosine
from learner.step.batch import rows_of
from learner.step.trainer import Trainer
from r3l.config import RunConfig, load

CENTRED = "r3l,credit=false,amplify=false,sft_weight=0"


def configs(model: Path, *rules: str) -> dict[str, RunConfig]:
    def of(rule: str) -> RunConfig:
        name, *settings = rule.split(",")
        more = [f"algorithm.{one}" for one in settings]
        return load(None, [f"model={model}", f"algorithm={name}", *more, "learner.zero_stage=0"])

    return {rule: of(rule) for rule in rules}


def said(*arguments: Any) -> Any:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def test_the_gradient_of_a_rule_is_that_of_the_learners_step(model: Path, store: Path) -> None:
    asked = configs(model, "r3l")
    groups, [answer] = compare(store, asked, count=5)
    config = asked["r3l"]
    algorithm = config.algorithm.build()
    step = Trainer(model, config.learner, algorithm).step(rows_of(groups, algorithm))
    norm = float(answer.gradient.norm())
    assert norm == pytest.approx(step.metrics["learner/grad_norm"], rel=1e-5) and norm > 0


def test_halved_losses_have_the_cosine_one_and_half_the_norm(model: Path, store: Path) -> None:
    """OPMD's loss is that of the plain policy gradient over 1 + tau = 2."""
    _, [plain, half, other] = compare(store, configs(model, CENTRED, "opmd", "r3l"), count=6)
    assert plain.advantages == half.advantages != other.advantages
    assert cosine(plain.gradient, half.gradient) == pytest.approx(1.0, abs=1e-5)
    assert float(half.gradient.norm()) == pytest.approx(float(plain.gradient.norm()) / 2, rel=1e-4)
    assert -1 < (cosine(plain.gradient, other.gradient) or 0) < 0.999


def test_rules_recall_and_leave_out_and_the_file_says_which(
    model: Path, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "compared.json"
    rules = ("grpo", "arpo", "raft", "r3l,recall_count=1")
    done = said(store, *rules, "--model", model, "--groups", 12, "--out", out)
    assert done.exit_code == 0, done.output
    assert all(rule in done.output for rule in (*rules, "cosine", "gradient norm"))
    tree = json.loads(out.read_text())
    failed = tree["groups"][0]
    assert {reward for *_, reward in failed["attempts"]} == {0.0}
    assert failed["advantages"]["grpo"] == [0.0] * len(failed["attempts"])
    assert failed["advantages"]["raft"] == [None] * len(failed["attempts"])
    [[_, _, _, reward]] = failed["recalled"]["arpo"]
    # one success in the place of the last failure: (1 − 1/n) / std, std² = (n − 1)/n²
    *_, dropped, recalled = failed["advantages"]["arpo"]
    n = len(failed["attempts"])
    assert dropped is None and reward == 1.0
    assert recalled == pytest.approx((n - 1) ** 0.5, rel=1e-4)
    by_rule = {fact["rule"]: fact for fact in tree["rules"]}
    assert by_rule["arpo"]["recalled"] == by_rule["r3l,recall_count=1"]["recalled"] > 0
    assert [row[place] for place, row in enumerate(tree["cosines"])] == pytest.approx(
        [1] * 4, abs=1e-4
    )


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["/no/where", "grpo"], "no store there"),
        (["STORE", "grpx"], "grpx"),
        (["STORE", "grpo,alpa=1"], "alpa"),
        (["STORE", "grpo", "grpo"], "named twice"),
        (["STORE", "grpo", "--model", "/no/model"], "/no/model"),
    ],
)
def test_bad_input_is_one_line(model: Path, store: Path, arguments: list[str], rule: str) -> None:
    given = [str(store) if one == "STORE" else one for one in arguments]
    done = said(*given, *([] if "--model" in given else ["--model", model]))
    assert done.exit_code == 2
    [line] = [x for x in done.output.splitlines() if x.startswith("r3l-learner: ")]
    assert rule in line


def test_a_zero_gradient_has_no_cosine(model: Path, store: Path) -> None:
    _, [answer] = compare(store, configs(model, "grpo"), count=2)
    assert cosine(answer.gradient, answer.gradient * 0) is None
