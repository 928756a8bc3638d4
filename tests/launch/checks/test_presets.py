"""Presets, and where settings come from."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from envs import registry
from envs.adapters.scienceworld.science_tasks import SPLITS
from launch.checks import presets
from r3l.algorithms.r3l import R3L
from r3l.run.config import RunConfig, load

PAPER = {  # environment -> training tasks, optimizer steps, tokens per response, options
    "alfworld": (3553, 740, 512, {"admissible": True, "max_steps": 25}),
    "webshop": (
        4096,
        853,
        512,
        {"products": 0, "goals": "human", "admissible": True, "max_steps": 15},
    ),
    "scienceworld": (2288, 476, 512, {"max_steps": 30}),
    "gsm8k": (7473, 1556, 4096, {"attempts": 3, "reflect_with_answer": True}),
}


@pytest.mark.parametrize("name", PAPER)
def test_a_preset_has_the_settings_of_the_paper_and_its_released_code(name: str) -> None:
    config = load(presets.preset_file(f"paper-{name}"))
    algorithm, actor, learner = config.algorithm, config.actor, config.learner
    tasks, steps, response, options = PAPER[name]
    given = {k: v for k, v in config.env.options.items() if k not in ("tasks", "eval_tasks")}
    assert (config.env.name, config.env.train_tasks, given) == (name, tasks, options)
    assert (algorithm.name, algorithm.group_size, algorithm.alpha) == ("r3l", 8, 3.0)
    assert (algorithm.normalize, algorithm.sft_pool, algorithm.sft_weight) == ("token", "shared", 1)
    assert (algorithm.sft_share, algorithm.guidance_text) == (None, "report")
    assert algorithm.verified_requires_success and algorithm.kl_coef == 0
    assert (actor.temperature, actor.reflect_temperature, config.eval.temperature) == (
        1.0,
        0.7,
        0.4,
    )
    assert (actor.max_response_tokens, actor.max_reflection_tokens) == (response, 4096)
    assert actor.max_model_len == 20480
    assert (learner.lr, learner.betas, learner.weight_decay) == (1e-6, (0.9, 0.999), 0.01)
    assert (learner.grad_clip, learner.groups_per_step, learner.steps) == (1.0, 96, steps)
    assert steps * 96 <= 20 * tasks < (steps + 1) * 96, "20 epochs, not more"
    assert (learner.publish_every, config.buffer.max_staleness, config.eval.every) == (1, 1, 20)
    assert "model" not in config.model_fields_set


def test_the_lean_preset_is_r3l_with_the_advice_alone_and_few_auxiliary_samples() -> None:
    lean = load(presets.preset_file("lean"))
    changed = {"guidance_text": "advice", "sft_share": 0.25}
    assert lean == RunConfig(algorithm=R3L(**changed))
    file, demo = presets.settings_file(None, "lean", Path("r"), resume=False)
    shipped = load(file, ["model=builtin"], demo=demo)
    assert shipped.learner == load(demo).learner, "the demo's, but for the algorithm"
    assert (shipped.algorithm.sft_share, shipped.algorithm.guidance_text) == (0.25, "advice")


def test_scienceworld_is_evaluated_on_tasks_that_are_not_trained() -> None:
    options = load(presets.preset_file("paper-scienceworld")).env.options
    train, held = options["tasks"], options["eval_tasks"]
    assert (len(train), len(held)) == (17, 13) and sorted(train + held) == sorted(SPLITS)
    # upstream's train variations; the paper takes the first half of all, 2,294 and 1,308
    assert sum(SPLITS[name][0] for name in train) == 2288
    assert sum(sum(SPLITS[name]) // 2 for name in train) == 2294
    assert sum(sum(SPLITS[name]) // 2 for name in held) == 1308


@pytest.mark.parametrize("path", sorted(presets.PRESETS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_preset_names_only_options_that_its_environment_has(path: Path) -> None:
    config = load(presets.preset_file(path.stem))
    module, _, kind = registry.ENVIRONMENTS[config.env.name].partition(":")
    options = inspect.signature(getattr(import_module(module), kind)).parameters
    assert set(config.env.options) <= set(options)
