"""The configuration: where values come from, and one line for everything that is wrong."""

from typing import get_args

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from r3l.algorithms.r3l import R3L
from r3l.errors import UserError
from r3l.rollout.env_interface import EnvSpec
from r3l.run.config import RunConfig, dump, load


def error_of(*overrides, path=None):
    with pytest.raises(UserError) as caught:
        load(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("seed: 3\nlearner:\n  lr: 1.0e-5\n  steps: 7\n")
    config = load(path, ["learner.steps=9", "algorithm.credit=false"])
    assert (config.seed, config.learner.lr, config.learner.steps) == (3, 1e-5, 9)
    assert config.algorithm.credit is False and config.algorithm.alpha == 3.0
    assert config.learner.groups_per_step == RunConfig().learner.groups_per_step


def test_the_defaults_are_the_settings_of_the_paper():
    config = RunConfig()
    algorithm, actor, learner = config.algorithm, config.actor, config.learner
    assert (algorithm.name, algorithm.group_size, algorithm.alpha) == ("r3l", 8, 3.0)
    assert (algorithm.max_rule, algorithm.max_advantage) == ("success", None)
    assert (algorithm.normalize, algorithm.sft_weight) == ("trajectory", 1.0)
    assert (algorithm.sft_share, algorithm.guidance_text) == (None, "report")
    assert algorithm.verified_requires_success and algorithm.pivot_shift == 0
    assert (actor.temperature, actor.reflect_temperature, config.eval.temperature) == (
        1.0,
        0.7,
        0.4,
    )
    assert actor.max_response_tokens is None and EnvSpec("e", "", 25).max_response_tokens == 512
    assert actor.max_reflection_tokens == 4096
    assert (learner.lr, learner.grad_clip, learner.publish_every) == (1e-6, 1.0, 1)


def test_training_attempts_are_never_greedy_and_evaluations_may_be():
    with pytest.raises(UserError, match=r"^config actor\.temperature: .* 0\.01, not 0$"):
        load(None, ["actor.temperature=0"])
    assert load(None, ["eval.temperature=0"]).eval.temperature == 0
    for name in ("actor.temperature", "actor.reflect_temperature", "eval.temperature"):
        with pytest.raises(UserError, match=f"{name}: must be at most 2, not 2.1"):
            load(None, [f"{name}=2.1"])


def test_a_section_of_a_file_may_be_its_name_alone(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("algorithm: grpo\nenv: workshop\n")
    assert load(path).algorithm.name == "grpo"
    assert load(path, ["algorithm.group_size=4"]).algorithm.group_size == 4
    assert load(None, ["algorithm.group_size=4", "algorithm=grpo"]).algorithm.name == "grpo"


def test_a_configuration_survives_its_own_yaml(tmp_path):
    config = load(None, ["algorithm.max_advantage=1", "env.options={size: 3}", "seed=5"])
    path = tmp_path / "run.yaml"
    path.write_text(dump(config))
    assert load(path) == config
    assert yaml.safe_load(dump(config))["algorithm"]["max_advantage"] == 1.0


def test_every_setting_is_described_and_no_section_can_be_changed():
    def inner(field):
        kinds = (field.annotation, *get_args(field.annotation))
        return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]

    def sections(model):
        yield model
        for field in model.model_fields.values():
            for section in inner(field):
                yield from sections(section)

    found = list(sections(RunConfig))
    assert R3L in found
    for section in found:
        assert section.model_config["frozen"] and section.model_config["extra"] == "forbid"
        for name, field in section.model_fields.items():
            assert field.description or inner(field), f"{section.__name__}.{name}"
    with pytest.raises(ValidationError):
        RunConfig().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        (
            "algorithm.aplha=2",
            "algorithm.aplha: unknown (did you mean alpha?)",
        ),
        ("lerner.lr=1", "lerner: unknown (did you mean learner?)"),
        ("lr=1", "lr: unknown (did you mean learner.lr?)"),
        ("algorithm=gpro", "'gpro' (did you mean grpo?)"),
        ("env.isolation=proces", "did you mean process?"),
        ("learner.keep_best=perhaps", 'must be true or false, not "perhaps"'),
        ("learner.deepspeed=[1]", "learner.deepspeed: must be a mapping"),
        ("learner.betas=[0.9]", "learner.betas.1: is missing"),
        ("actor.max_response_tokens=x", 'must be a whole number, not "x"'),
        ("algorithm.group_size=0", "algorithm.group_size"),
        (
            "algorithm.group_size=five",
            'algorithm.group_size: must be a whole number, not "five"',
        ),
        ("algorithm=[grpo]", "config algorithm: must be a mapping"),
        ("algorithm.name=[grpo]", "config algorithm: unknown"),
        ("algorithm.alpha.beta=1", 'algorithm.alpha: must be a number, not {"beta": 1}'),
        ("algorithm.alpha=-1", "algorithm.alpha"),
        ("algorithm.alpha=.inf", "algorithm.alpha"),
        ("algorithm.max_advantage=.nan", "algorithm.max_advantage"),
        ("algorithm.max_rule=best", "algorithm.max_rule"),
        ("seed", "section.key=value"),
        ("=3", "section.key=value"),
        ("seed.value=3", "seed"),
        ("buffer.max_staleness=0", ""),
        ("learner.betas=[{", "'learner.betas=[{': not valid YAML"),
        ("seed=@x", "not valid YAML"),
        ("seed=!!python/object:os.system {}", "not valid YAML"),
        ("learner.lr=2024-99-99", 'learner.lr: must be a number, not "2024-99-99"'),
        ("seed=" + "1" * 5000, "not valid YAML"),
        ("seed=" + "[" * 3000, "not valid YAML"),
        ("seed=4294967296", "seed"),  # NumPy's generators, and so vLLM, take 32 bits
        ("learner.lr=.inf", "learner.lr: must be a finite number"),
        ("budget.tokens=true", "budget.tokens: must be a whole number, not true"),
        ("algorithm.alpha=true", "algorithm.alpha: must be a number, not true"),
        ("learner.grad_clip=.inf", "learner.grad_clip"),
        ("learner.betas=[0.9, 1.0]", "learner.betas.1: must be less than 1, not 1.0"),
        ("buffer.lease_s=1e300", "buffer.lease_s"),
        ("buffer.map_gib=1e9", "buffer.map_gib"),
        ("env.train_tasks=999999999999", "env.train_tasks"),
    ],
)
def test_a_bad_override_is_one_line_that_names_it(override, named):
    if not named:
        assert load(None, [override]).buffer.max_staleness == 0
        return
    assert named in error_of(override)


def test_a_max_staleness_that_cannot_reach_the_next_sync_is_refused():
    message = error_of("buffer.max_staleness=1", "learner.publish_every=4")
    assert "max_staleness 1" in message and "lower publish_every" in message


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["learner.attention=sdpa", "learner.pack=tree"], "set pack=rows or attention=auto"),
        (["buffer.retention.gib=9", "buffer.map_gib=1"], "raise map_gib or lower retention.gib"),
        (
            ["algorithm=forward_kl", "learner.pack=rows"],
            "learner.pack=rows: forward_kl makes many rows of each attempt",
        ),
    ],
)
def test_contradicting_settings_are_refused_with_what_to_set_instead(overrides, named):
    assert named in error_of(*overrides)
    assert load(None, overrides[:1])


def test_an_empty_section_keeps_its_defaults(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("learner:\nseed: 1\n")
    assert load(path).learner == RunConfig().learner
    assert load(path, ["learner.steps=3"]).learner.steps == 3


def test_an_invalid_configuration_file_is_named_with_its_fault(tmp_path):
    path = tmp_path / "run.yaml"
    assert f"config {path}: cannot be read" in error_of(path=path)
    path.write_text("a: [1")
    assert "not valid YAML" in error_of(path=path)
    path.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in error_of(path=path)
    path.write_text("learner: {deepspeed: &a {x: *a}}")
    assert "*a is an alias" in error_of(path=path)
    path.write_text("- 1\n- 2\n")
    assert "must be a mapping" in error_of(path=path)
    path.write_text("")
    assert load(path) == RunConfig()


def test_the_file_of_a_run_goes_with_another_algorithm_and_environment(tmp_path):
    path = tmp_path / "config.yaml"
    given = ["algorithm.alpha=2", "algorithm.group_size=6", "env.options={size: 3}", "learner.lr=1"]
    path.write_text(dump(load(None, [*given, "env.workers=3"])))
    for override in ("algorithm=grpo", "algorithm.name=grpo"):
        changed = load(None, ["algorithm=grpo", "algorithm.group_size=6"]).algorithm
        assert load(path, [override]).algorithm == changed
    assert load(path, ["algorithm=r3l"]).algorithm.alpha == 2
    other = load(path, ["env=keys"])
    assert (other.env.options, other.env.workers, other.learner.lr) == ({}, 3, 1)
    assert load(path, ["env=workshop"]).env.options == {"size": 3}
    assert load(path, ["buffer.sampler.reuse=2", "buffer.sampler=lifo"]).buffer.sampler.reuse == 2


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        ((), ["learner.lora.rank=4"], 1e-5),
        (["learner.lora.rank=4"], ["learner.lora.rank=0"], 1e-6),
        (["learner.lora.rank=4"], ["learner.lora.rank=8"], 1e-5),
        (["learner.lr=1e-4"], ["learner.lora.rank=4"], 1e-4),
        ((), ["learner.lora.rank=4", "learner.lr=1e-6"], 1e-6),
    ],
)
def test_the_file_of_a_run_keeps_a_rate_that_was_chosen_when_adapters_are_switched(
    tmp_path, before, after, rate
):
    file = tmp_path / "config.yaml"
    file.write_text(dump(load(None, before)))
    assert load(file, after).learner.lr == rate


def test_a_users_file_keeps_its_rate_when_adapters_are_switched_on(tmp_path):
    (tmp_path / "my.yaml").write_text("learner: {lr: 1.0e-6}\n")
    assert load(tmp_path / "my.yaml", ["learner.lora.rank=8"]).learner.lr == 1e-6


def test_the_demos_settings_lie_below_the_file_if_the_policy_is_the_shipped_one(tmp_path):
    demo, path = tmp_path / "demo.yaml", tmp_path / "my.yaml"
    demo.write_text("env: workshop\nlearner: {lr: 0.5, steps: 9}\nbuffer: {max_staleness: 1}\n")
    path.write_text("env: {options: {words: 2}}\nlearner: {steps: 7}\nbuffer:\n")
    config = load(path, ["seed=3"], demo=demo)
    assert (config.learner.lr, config.learner.steps, config.seed) == (0.5, 7, 3)
    assert (config.env.name, config.env.options) == ("workshop", {"words": 2})
    assert config.buffer.max_staleness == 1
    assert load(None, ["learner.steps=2"], demo=demo).learner.lr == 0.5
    assert load(path, ["model=/models/other"], demo=demo).learner.lr == RunConfig().learner.lr


def test_no_line_about_a_setting_is_in_the_words_of_a_library():
    wrong = ["learner.lr=[1]", "env.options=3", "actor.engine=x", "learner.betas=7", "model=3"]
    wrong += ["algorithm=7", "learner.keep_best=[1]"]
    for override in [*wrong, "algorithm.max_rule=5", "seed=1.5", "learner.betas=[1,2,3]"]:
        line = error_of(override)
        for word in ("Input", "None", "True", "dict", "tuple", "int ", "str", "instance"):
            assert word not in line, line


def test_an_evaluation_has_a_temperature_of_its_own() -> None:
    config = load(None, ["eval.temperature=0.25", "actor.max_model_len=128"])
    played = config.for_evaluation()
    assert (played.actor.temperature, played.actor.max_model_len) == (0.25, 128)
    assert config.actor.temperature == 1.0
