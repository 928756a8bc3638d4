"""reasoning-gym: seeds, splits, and scorers that cannot be fooled."""

import pytest

from envs import registry
from envs.base import SPLIT_SIZE
from envs.testing import check_env
from r3l.errors import EnvironmentFailed, UserError
from r3l.run.config import load

pytest.importorskip("reasoning_gym")
from envs.questions.reasoning_gym import family_question, harmless


@pytest.mark.parametrize("family", ["chain_sum", "letter_counting", "rubiks_cube"])
def test_families_conform(family):
    check_env(f"reasoning:{family}", seeds=range(2))


def test_an_evaluation_has_one_attempt():
    assert registry.tasks("reasoning:gcd", {}, "eval", 1)[0].options["attempts"] == 1


def test_the_answers_of_an_evaluation_are_listed_and_right():
    env = registry.make("reasoning:chain_sum")
    (task,) = registry.tasks("reasoning:chain_sum", {}, "eval", 1)
    env.reset(seed=task.seed, options=task.options)
    listed = env.right_answers()
    assert len(listed) == 2 and env.solution() in listed
    for answer in listed:
        env.reset(seed=task.seed, options=task.options)
        assert env.step(answer)[1:3] == (1.0, True)
    env.reset(seed=task.seed)  # in training, three answers are allowed
    assert env.right_answers() == []


def test_several_families_are_played_as_several_environments():
    config = load(None, ["env=reasoning:gcd", "env.others={'reasoning:lcm': {}}"])
    drawn = registry.tasks_of_all(config.env, "train", 4)
    assert {task.env for task in drawn} == {"reasoning:gcd", "reasoning:lcm"}


def test_no_question_is_in_two_splits_even_if_there_are_few_questions():
    asked = {
        place: {
            family_question("coin_flip", "{}", place * SPLIT_SIZE + n).entry["question"]
            for n in range(60)
        }
        for place in range(3)
    }
    assert not asked[1] & asked[2] and not asked[0] & asked[1]


def test_a_right_answer_is_paid_and_nonsense_is_not():
    env = registry.make("reasoning:chain_sum")
    env.reset(seed=5)
    gold = env.question.entry["answer"]
    assert env.step("<answer>zzz</answer>")[:3] == (
        "Incorrect. Try again, 2 attempts left.",
        0,
        False,
    )
    assert env.step(f"so <answer>{gold}</answer>")[:3] == ("Correct.", 1.0, True)


@pytest.mark.parametrize(
    "family",
    ["game_of_life_halting", "prime_factorization", "spell_backward", "fraction_simplification"],
)
def test_scorers_that_pay_for_nonsense_or_raise_are_guarded(family):
    question = family_question(family, "{}", SPLIT_SIZE)
    for answer in ("zzz", "", "()", "\x00", "a" * 10_000):
        assert question.score(answer)[0] == 0.0
    env = registry.make(f"reasoning:{family}")
    env.reset(seed=SPLIT_SIZE)
    assert env.step(env.demonstration()[0])[1] == 1.0


def test_a_scorer_that_raises_over_an_answer_pays_nothing_and_is_named():
    env = registry.make("reasoning:prime_factorization")
    env.reset(seed=SPLIT_SIZE)
    _, reward, *_, info = env.step("<answer>seven times two</answer>")
    assert (reward, info["fault"]) == (0.0, "scorer_ValueError")
    *_, info = env.step("<answer>7 × 2</answer>")
    assert info["fault"] == ""


@pytest.mark.parametrize(
    "answer",
    [
        "9**9**9",
        "__import__('os')",
        "open('x')",
        "().__class__",
        "(lambda: 1)()",
        "a.b",
        "x**99999",
    ],
)
def test_an_answer_that_could_be_a_program_is_not_evaluated(answer):
    assert not harmless(answer)
    assert family_question("puzzle24", "{}", SPLIT_SIZE).score(answer) == (0.0, "")


@pytest.mark.parametrize(
    "answer", ["(25 - 7)*3", "x**2/2 + sin(x) + C", "[[0, 1], [1, 0]]", "['a']"]
)
def test_answers_that_scorers_must_evaluate_pass_the_check(answer):
    assert harmless(answer)


def test_an_unknown_family_and_one_that_does_not_repeat_are_refused():
    with pytest.raises(UserError, match=r"unknown family.* ab, acre"):
        registry.make("reasoning:sums")
    with pytest.raises(UserError, match="differ from run to run"):
        registry.make("reasoning:codeio")
    with pytest.raises(UserError, match=r"chain_sum: option config"):
        registry.make("reasoning:chain_sum", config={"colour": 1})


def test_a_family_too_small_for_its_splits_fails_with_a_cause(monkeypatch):
    monkeypatch.setattr("envs.questions.reasoning_gym.split_of", lambda what: "train")
    monkeypatch.setattr("envs.questions.reasoning_gym.TRIES", 5)
    with pytest.raises(EnvironmentFailed) as caught:
        family_question("gcd", "{}", 2 * SPLIT_SIZE + 77)
    assert caught.value.cause == "split_empty"
