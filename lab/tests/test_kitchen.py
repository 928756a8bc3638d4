"""TextWorld's kitchen with its demonstrator and its teacher: real games, real interpreter."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from envs import registry
from envs.base import Demonstrating, Skill
from envs.testing import check_env
from lab.real_model.kitchen import RULES, SYSTEM, WASTE, Kitchen
from r3l.errors import UserError

textworld = pytest.importorskip("textworld", reason="pip install 'r3l[textworld]'")
KITCHEN = "lab/real_model/kitchen.py:Kitchen"
NO_COOK = Skill(withheld=1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("games"))


@pytest.fixture
def kitchen(cache: str) -> Iterator[Kitchen]:
    env = Kitchen(cache=cache)
    env.reset(seed=3)
    yield env
    env.close()


def play(env: Kitchen, skill: Skill, advice: str = "") -> list[str]:
    rng, ended = random.Random(0), False
    while not ended and len(env.actions) < env.spec.max_steps:
        _, _, terminated, truncated, _ = env.step(env.demonstrate(skill, rng, advice))
        ended = terminated or truncated
    return env.actions


def test_the_kitchen_conforms_and_has_demonstrations(cache: str, kitchen: Kitchen) -> None:
    check_env(KITCHEN, seeds=(0, 1), options={"cache": cache}, max_steps=8)
    assert isinstance(kitchen, Demonstrating) and kitchen.spec.system_prompt == SYSTEM
    assert len(registry.tasks(KITCHEN, {"games": 5}, "eval", 9)) == 5


def test_a_demonstrator_that_knows_all_rules_wins_and_its_teacher_praises(kitchen: Kitchen) -> None:
    actions = play(kitchen, Skill())
    assert actions[0] == "examine cookbook" and actions[-1] == "eat meal"
    assert any(action.startswith("cook ") for action in actions) and kitchen.state.won
    thought = kitchen.reflection()
    assert (thought["trajectory_outcome"], thought["retry_from_step"]) == ("success", None)


def test_a_withheld_rule_is_left_out_and_advice_at_the_pivot_wins(kitchen: Kitchen) -> None:
    actions = [*play(kitchen, NO_COOK)]
    assert not any(action.startswith("cook ") for action in actions) and not kitchen.state.won
    thought = kitchen.reflection()
    pivot, advice = thought["retry_from_step"], thought["improvement_suggestion"]
    assert thought["trajectory_outcome"] == "failure"
    assert actions[pivot] == "prepare meal" and advice.startswith("cook ")
    kitchen.reset(seed=3)
    for action in actions[:pivot]:
        kitchen.step(action)
    kept = kitchen.snapshot()
    kitchen.close()
    kitchen.restore(kept)
    assert play(kitchen, NO_COOK, advice)[pivot] == advice and kitchen.state.won


def test_the_game_does_not_name_the_command_that_is_missing(kitchen: Kitchen) -> None:
    kitchen.step("examine cookbook")
    for command in [each for each in kitchen.plan() if not each.startswith("cook ")]:
        said = kitchen.step(command)[0]
        if command == "prepare meal":
            break
    assert "cooked" in said and not {"stove", "oven"} & set(said.split())


def test_two_withheld_rules_leave_only_what_needs_neither(kitchen: Kitchen) -> None:
    verbs = {action.split()[0] for action in play(kitchen, Skill(withheld=len(RULES)))}
    assert not verbs & {verb for rule in RULES for verb in rule} and "prepare" in verbs


def test_a_loss_is_retried_from_the_step_that_lost(kitchen: Kitchen) -> None:
    kitchen.step("examine cookbook")
    cook = next(command for command in kitchen.plan() if command.startswith("cook "))
    other = {"oven": "stove", "stove": "oven"}
    *words, where = cook.split()
    kitchen.step(kitchen.plan()[0])
    kitchen.step(" ".join([*words, other[where]]))
    assert kitchen.state.lost
    thought = kitchen.reflection()
    assert (thought["retry_from_step"], thought["improvement_suggestion"]) == (2, cook)


def test_a_demonstrator_wastes_steps_errs_and_sometimes_knows_a_withheld_rule(
    kitchen: Kitchen,
) -> None:
    rng = random.Random(0)
    assert kitchen.demonstrate(Skill(waste=1.0), rng) == WASTE
    assert kitchen.demonstrate(Skill(mistakes=1.0), rng) in kitchen._info()["admissible"]
    kitchen.step("examine cookbook")
    kitchen.step(kitchen.plan()[0])
    assert not kitchen.demonstrate(NO_COOK, rng).startswith("cook ")
    assert kitchen.demonstrate(Skill(withheld=1, certainty=1.0), rng).startswith("cook ")


def test_broad_lessons_have_meals_that_need_no_cooking_and_mistakes_that_spoil(cache: str) -> None:
    spoiled = {}
    for lessons in ("broad", "narrow"):
        env = Kitchen(cache=cache, lessons=lessons)
        env.reset(seed=3)
        for command in env.plan()[:1] + env.plan()[1:2]:
            env.step(command)
        rng, erring = random.Random(0), Skill(mistakes=1.0)
        said = [env.demonstrate(erring, rng).split()[0] for _ in range(100)]
        spoiled[lessons] = sum(verb in {v for rule in RULES for v in rule} for verb in said)
        env.close()
    assert spoiled["broad"] > 40 > 20 > spoiled["narrow"]
    raw = Kitchen(cache=cache, cook=False)
    assert {"cook": False} in raw.practice() and Kitchen(lessons="narrow").practice() == [{}]
    raw.reset(seed=3)
    play(raw, NO_COOK)
    assert raw.state.won
    raw.close()


def test_the_reward_is_the_score_or_one_for_a_won_game(cache: str) -> None:
    earned = {}
    for rewards in ("dense", "sparse"):
        env = Kitchen(cache=cache, rewards=rewards)
        env.reset(seed=3)
        earned[rewards] = [
            round(env.step(env.demonstrate(Skill(), random.Random(0)))[1], 6) for _ in range(7)
        ]
        env.close()
    assert sum(earned["dense"]) == pytest.approx(1.0) and earned["dense"].count(0.2) == 5
    assert earned["sparse"] == [0.0] * 6 + [1.0]
    with pytest.raises(UserError, match="rewards"):
        Kitchen(cache=cache, rewards="rich")


def test_games_are_kept_in_the_cache(cache: str, kitchen: Kitchen) -> None:
    assert [*Path(cache).rglob("3.z8")]
