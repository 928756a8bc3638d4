"""The registry: every algorithm's three choices, its settings, and what the ablations change."""

import math
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from r3l.algorithms import losses, registry
from r3l.algorithms.algorithm import Exploration
from r3l.config import RunConfig, dump, load
from r3l.errors import UserError
from r3l.records import GroupPlan

NAMES = sorted(registry.REGISTRY)


def get(name="r3l", **settings):
    return registry.REGISTRY[name](**settings).build()


@pytest.fixture
def group(make_trajectory):
    """Four attempts, of which 0 and 2 were done again from step 1."""

    def make(base_rewards=(0.0, 1.0, 0.5, 0.0), retry_rewards=((0, 1.0), (2, 0.25))):
        bases = [make_trajectory(slot=i, reward=r) for i, r in enumerate(base_rewards)]
        retries = [
            make_trajectory(slot=i, reward=r, role="distilled", parent=i, pivot=1)
            for i, r in retry_rewards
        ]
        return bases + retries

    return make


def advantages_of(algorithm, trajectories):
    return algorithm.advantages([one.reward for one in trajectories], trajectories)


def test_the_registry_holds_the_papers_algorithms():
    papers = "r3l grpo dapo gspo opmd raft reflect_grpo critique_grpo"
    assert set(registry.REGISTRY) == set(papers.split())
    assert all(get(name).name == name for name in NAMES)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("r3l", GroupPlan(4, 4)),
        ("reflect_grpo", GroupPlan(4, 4)),
        ("critique_grpo", GroupPlan(8, 8)),
        *((name, GroupPlan(8)) for name in ("grpo", "dapo", "gspo", "opmd", "raft")),
    ],
)
def test_the_plan_is_the_papers(name, plan):
    assert get(name).plan() == plan


def test_only_baselines_with_a_kl_need_a_reference():
    assert {n for n in NAMES if get(n).needs_reference} == {"grpo", "gspo", "reflect_grpo"}
    assert {n for n in NAMES if get(n).sft_weight} == {"r3l"}
    assert {n for n in NAMES if get(n).normalize == "token"} == {"dapo"}


def test_r3l_explores_as_its_settings_say():
    plain = get().exploration
    assert plain == Exploration(4, 4, aux=True)
    assert plain.retry and plain.trigger == "reflection" and not plain.from_start
    assert get(from_start=True).exploration.from_start
    assert get(guidance=False).exploration.guidance == "none"
    assert not get(constrained_reflection=False).exploration.constrained
    assert not get(verified_requires_success=False).exploration.verified_requires_success


def test_without_reflection_there_are_only_attempts():
    ablated = get(reflect=False)
    assert ablated.plan() == GroupPlan(8)
    assert not ablated.exploration.retry and ablated.sft_weight == 0.0
    assert get(reflect=False, group_size=3).plan() == GroupPlan(3)


def test_without_credit_only_the_masks_change(group):
    trajectories = group()
    full = [int(one.response_mask.sum()) for one in trajectories]
    assert [int(m.sum()) for m in get(credit=False).masks(trajectories)] == full == [5] * 6
    assert [int(m.sum()) for m in get().masks(trajectories)] == [3, 5, 3, 5, 3, 3]
    with_credit, _ = advantages_of(get(), trajectories)
    without, _ = advantages_of(get(credit=False), trajectories)
    assert with_credit.tolist() == without.tolist()


def test_amplification_follows_its_settings(group):
    trajectories = group((1.0, 0.0), ((1, 0.5),))
    assert advantages_of(get(amplify=False), trajectories)[0].tolist() == [0.5, -0.5, 0.0]
    assert advantages_of(get(), trajectories)[0].tolist() == [3.0, -0.5, 0.0]
    best = group((0.5, 0.0), ())
    assert advantages_of(get(), best)[0].tolist() == [0.75, -0.25]
    assert advantages_of(get(max_rule="group_max"), best)[0].tolist() == [3.0, -0.25]
    assert advantages_of(get(alpha=2.0, max_advantage=1.0), trajectories)[0][0] == 1.0


def test_the_baseline_masks_keep_every_response_token(group):
    for name in set(NAMES) - {"r3l"}:
        assert [int(m.sum()) for m in get(name).masks(group())] == [5] * 6


def test_raft_keeps_successes_with_weight_one(group):
    values, keep = advantages_of(get("raft"), group(retry_rewards=()))
    assert values.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert keep.tolist() == [False, True, False, False]


def test_dapo_drops_groups_without_contrast(group):
    values, keep = advantages_of(get("dapo"), group((1.0, 1.0), ()))
    assert values.tolist() == [0.0, 0.0] and not keep.any()
    values, keep = advantages_of(get("dapo"), group((1.0, 0.0), ()))
    assert keep.all() and values == pytest.approx([1.0, -1.0], rel=1e-5)


def test_critique_grpo_puts_the_best_refinement_in_place_of_its_failure(group):
    trajectories = group((0.0, 1.0, 0.5, 0.0), ((0, 0.75), (2, 0.75), (3, 0.0)))
    values, keep = advantages_of(get("critique_grpo"), trajectories)
    assert keep.tolist() == [False, True, True, True, True, False, False]
    kept = np.array([1.0, 0.5, 0.0, 0.75])
    want = (kept - kept.mean()) / (kept.std() + 1e-6)
    assert values[keep] == pytest.approx(want) and (values[~keep] == 0).all()


def test_critique_grpo_keeps_a_failure_that_no_refinement_betters(group):
    trajectories = group((0.5, 1.0), ((0, 0.5), (1, 2.0)))  # a success is never replaced
    _, keep = advantages_of(get("critique_grpo"), trajectories)
    assert keep.tolist() == [True, True, False, False]


def test_reflect_grpo_standardises_the_mixed_group(group):
    values, keep = advantages_of(get("reflect_grpo"), group((0.0, 0.0), ((0, 1.0), (1, 1.0))))
    assert keep.all() and values == pytest.approx([-1, -1, 1, 1], rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_one_has_finite_advantages(name, make_trajectory):
    for reward in (-1.0, 0.0, 0.5, 1.0):
        values, keep = advantages_of(get(name), [make_trajectory(reward=reward)])
        assert np.isfinite(values).all() and values.dtype == np.float64
        assert keep.dtype == np.bool_


@pytest.mark.parametrize("name", NAMES)
def test_bad_rewards_are_refused(name, make_trajectory):
    one = make_trajectory()
    for rewards in ([math.nan], [math.inf]):
        with pytest.raises(ValueError, match=r"rewards\[0\]"):
            get(name).advantages(rewards, [one])
    with pytest.raises(ValueError, match="shape"):
        get(name).advantages([], [])
    with pytest.raises(ValueError, match="2 rewards for 1 trajectories"):
        get(name).advantages([0.0, 1.0], [one])


# -- token losses ---------------------------------------------------------------------------


@pytest.fixture
def batch():
    draw = torch.Generator().manual_seed(0)

    def logprobs():
        return -3 * torch.rand(4, 5, generator=draw, dtype=torch.float64) - 0.01

    return losses.TokenBatch(
        logprobs_BT=logprobs().requires_grad_(True),
        old_logprobs_BT=logprobs(),
        mask_BT=torch.rand(4, 5, generator=draw) < 0.7,
        advantages_B=torch.tensor([3.0, -0.5, 0.0, 1.0], dtype=torch.float64),
        weights_B=torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64),
        distilled_B=torch.tensor([False, False, True, True]),
        ref_logprobs_BT=logprobs(),
    )


def total(batch, loss, **options):
    batch = batch.masked()
    return batch.total(loss(batch, **options)[0]).item()


def kl_of(batch):
    batch = batch.masked()
    return batch.total(losses.k3_kl(batch)).item()


CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def test_each_algorithm_applies_the_papers_loss(batch):
    clip = partial(losses.ppo_clip, **CLIP)
    grpo = total(batch, clip) + 0.01 * kl_of(batch)
    gspo = total(batch, losses.gspo, clip_low=3e-4, clip_high=4e-4)
    want = {
        "r3l": total(batch, losses.policy_gradient),
        "raft": total(batch, losses.policy_gradient),
        "opmd": total(batch, losses.policy_gradient) / 2,
        "grpo": grpo,
        "reflect_grpo": grpo,
        "dapo": total(batch, losses.ppo_clip, clip_low=0.2, clip_high=0.28),
        "gspo": gspo + 0.01 * kl_of(batch),
        "critique_grpo": total(batch, losses.refined, attempts=clip, gamma=0.1),
    }
    for name in NAMES:
        algorithm = get(name)
        got, parts = algorithm.loss(batch)
        assert got.item() == pytest.approx(want[name], rel=1e-12), name
        assert ("kl_reference" in parts) == algorithm.needs_reference
        assert all(type(value) is float for value in parts.values())


def test_the_clip_the_kl_and_tau_of_a_baseline_are_settings(batch):
    def value(name, **settings):
        algorithm = get(name, **settings)
        assert algorithm.needs_reference == (settings["kl_coef"] != 0)
        return algorithm.loss(batch)[0].item()

    clip = {"clip_low": 0.1, "clip_high": 0.5}
    clipped = total(batch, losses.ppo_clip, **clip)
    assert value("grpo", kl_coef=0, **clip) == value("reflect_grpo", kl_coef=0, **clip) == clipped
    assert value("grpo", kl_coef=0.5, **clip) == pytest.approx(clipped + 0.5 * kl_of(batch))
    sequence = total(batch, losses.gspo, **clip)
    assert value("gspo", kl_coef=0.5, **clip) == pytest.approx(sequence + 0.5 * kl_of(batch))
    assert value("dapo", kl_coef=0, **clip) == clipped
    attempts = partial(losses.ppo_clip, **clip)
    mixed = total(batch, losses.refined, attempts=attempts, gamma=0.1)
    assert value("critique_grpo", kl_coef=0, **clip) == pytest.approx(mixed)
    opmd, _ = get("opmd", tau=3.0).loss(batch)
    assert opmd.item() == pytest.approx(total(batch, losses.policy_gradient) / 4)


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_parts_of_micro_batches_add_up(batch, name):
    algorithm = get(name)
    whole, parts = algorithm.loss(batch)
    halves = [
        algorithm.loss(replace(batch, **{k: v[rows] for k, v in vars(batch).items()}))
        for rows in (slice(0, 1), slice(1, 4))
    ]
    assert sum(value for value, _ in halves).item() == pytest.approx(whole.item(), rel=1e-12)
    for key, value in parts.items():
        assert sum(half[key] for _, half in halves) == pytest.approx(value, rel=1e-12)


def test_a_missing_reference_is_named(batch):
    alone = replace(batch, ref_logprobs_BT=None)
    with pytest.raises(ValueError, match="needs the reference"):
        get("grpo").loss(alone)
    get("r3l").loss(alone)


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_can_be_sent_to_another_process(name):
    assert pickle.loads(pickle.dumps(get(name))).plan() == get(name).plan()


# -- configuration --------------------------------------------------------------------------


def refusal(*overrides):
    with pytest.raises(UserError) as caught:
        load(None, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_algorithm_names_the_known_ones():
    known = "r3l, grpo, dapo, gspo, opmd, raft, reflect_grpo, critique_grpo"
    message = f"config algorithm: unknown algorithm 'nope'; known: {known}"
    assert refusal("algorithm=nope") == message
    assert refusal("algorithm.name=nope", "algorithm.alpha=2") == message


def test_a_setting_that_the_algorithm_does_not_have_is_named_with_those_it_has():
    named = "config key algorithm.alpha: unknown; this section knows name, group_size, clip_low"
    assert refusal("algorithm=grpo", "algorithm.alpha=2").startswith(named)
    assert "algorithm.credit: unknown" in refusal("algorithm=opmd", "algorithm.credit=false")
    assert "algorithm.normalize: unknown" in refusal("algorithm=gspo", "algorithm.normalize=token")


def test_settings_without_a_name_are_r3ls(tmp_path):
    assert load(None, ["algorithm.credit=false"]) == load(
        None, ["algorithm.credit=false", "algorithm=r3l"]
    )
    (tmp_path / "run.yaml").write_text("algorithm: {alpha: 2}\n")
    assert load(tmp_path / "run.yaml").algorithm.alpha == 2.0
    (tmp_path / "run.yaml").write_text("algorithm:\n")
    assert load(tmp_path / "run.yaml") == RunConfig()


def test_another_name_keeps_the_files_settings_and_refuses_those_it_does_not_have(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("algorithm: {name: dapo, group_size: 4, clip_high: 0.3}\n")
    changed = load(path, ["algorithm=grpo"]).algorithm
    assert (changed.name, changed.group_size, changed.clip_high) == ("grpo", 4, 0.3)
    with pytest.raises(UserError, match=r"algorithm\.clip_high: unknown"):
        load(path, ["algorithm=raft"])


@pytest.mark.parametrize("name", ["r3l", "reflect_grpo"])
def test_a_group_that_does_not_split_is_named(name):
    assert "config algorithm: group_size 7: " in refusal(
        f"algorithm={name}", "algorithm.group_size=7"
    )
    assert get("grpo", group_size=7).plan() == GroupPlan(7)


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithms_configuration_reads_back_equal(name, tmp_path):
    config = load(None, [f"algorithm={name}", "algorithm.group_size=4"])
    (tmp_path / "run.yaml").write_text(dump(config))
    assert load(tmp_path / "run.yaml") == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_each_ablation_is_one_override():
    for override in (
        "credit=false",
        "amplify=false",
        "reflect=false",
        "from_start=true",
        "guidance=false",
    ):
        config = load(None, [f"algorithm.{override}"])
        assert config != RunConfig()
        assert config.algorithm.build()


REINFORCE = """
from typing import Literal

from pydantic import Field

from r3l.algorithms import advantages, losses
from r3l.algorithms.algorithm import Algorithm, AlgorithmConfig, Exploration


class ReinforceConfig(AlgorithmConfig):
    name: Literal["reinforce"] = Field("reinforce", description="algorithm")

    def build(self):
        return Algorithm(
            name=self.name,
            exploration=Exploration(self.group_size),
            estimator=advantages.centered,
            token_loss=losses.policy_gradient,
        )
"""
USE = """
from r3l.config import RunConfig, dump, load
from r3l.errors import UserError

config = load(None, ["algorithm=reinforce", "algorithm.group_size=3"])
assert config.algorithm.build().plan().base == 3
assert "name: reinforce" in dump(config)
assert RunConfig.model_validate_json(config.model_dump_json()) == config
try:
    load(None, ["algorithm=reinforce", "algorithm.alpha=2"])
except UserError as error:
    print(error)
"""


def test_a_new_algorithm_is_one_file_and_one_line_in_the_registry_with_its_import(tmp_path):
    root = Path(registry.__file__).parent.parent
    shutil.copytree(root, tmp_path / "r3l", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "r3l/algorithms/reinforce.py").write_text(REINFORCE)
    path = tmp_path / "r3l/algorithms/registry.py"
    text = path.read_text()
    imported = "from r3l.algorithms.reinforce import ReinforceConfig\nfrom r3l.section"
    text = text.replace("from r3l.section", imported)
    path.write_text(text.replace("    | GRPOConfig\n", "    | GRPOConfig\n    | ReinforceConfig\n"))
    used = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    message = "config key algorithm.alpha: unknown; this section knows name, group_size\n"
    assert used.stdout == message


def test_configuration_and_algorithms_import_without_torch():
    code = (
        "import sys, r3l.config\n"
        "r3l.config.RunConfig().algorithm.build()\n"
        "assert not {'torch', 'vllm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
