"""The worlds of rows: replay, reward, remarks, dials, demonstrators and teachers."""

import json
import random

import pytest

from envs import registry
from envs.base import Demonstrating, Skill
from envs.builtin.matching import Dials
from envs.builtin.workshop import THOUGHT
from envs.testing import check_env
from r3l.errors import UserError
from r3l.rollout import reflection
from r3l.rollout.env_interface import Environment

WORLDS = ("workshop", "keys")
CARELESS = Skill(withheld=4, mistakes=0.2, waste=0.2)


def play(env, seed, skill, rng=None, advice=""):
    """Actions, observations (one more) and total reward of a demonstrated attempt."""
    rng = rng or random.Random(seed)
    observations, actions, total, ended = [env.reset(seed=seed)[0]], [], 0.0, False
    while not ended:
        actions.append(env.demonstrate(skill, rng, advice))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        observations.append(observation)
        total, ended = total + reward, terminated or truncated
    return actions, observations, total


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_offers_snapshots_and_demonstrations(name):
    env = registry.make(name)
    assert isinstance(env, Environment)
    assert isinstance(env, Demonstrating)
    assert env.spec.name == name and env.spec.deterministic == "exact"


@pytest.mark.parametrize(("name", "one"), [("workshop", {"stations": 1}), ("keys", {"locks": 1})])
def test_a_world_of_one_step_lists_its_right_answers_and_any_other_world_none(name, one):
    env = registry.make(name, steps=1, **one)
    for seed in range(20):
        env.reset(seed=seed)
        listed, shown = env.right_answers(), env.demonstration()
        assert len(listed) == 4 and {answer.lower().rstrip(".") for answer in listed} == {*shown}
        for answer in listed:
            env.reset(seed=seed)
            assert env.step(answer)[1:3] == (1.0, True), answer
    for options in ({}, one, {"steps": 9, **one}):
        other = registry.make(name, **options)
        other.reset(seed=0)
        assert other.right_answers() == []


@pytest.mark.parametrize("name", WORLDS)
def test_the_same_seed_and_actions_give_the_same_lines(name):
    first, second = registry.make(name), registry.make(name)
    for seed in range(100):
        actions, observations, _ = play(first, seed, CARELESS)
        again = [second.reset(seed=seed)[0]]
        again += [second.step(action)[0] for action in actions]
        assert again == observations
        assert second.feedback() == first.feedback()


@pytest.mark.parametrize("name", WORLDS)
def test_a_snapshot_taken_anywhere_continues_as_the_original_did(name):
    env, other = registry.make(name), registry.make(name)
    for seed in range(30):
        actions, _, _ = play(env, seed, CARELESS)
        for cut in range(len(actions)):
            env.reset(seed=seed)
            for action in actions[:cut]:
                env.step(action)
            state = env.snapshot()
            assert isinstance(state, bytes)
            other.restore(state)
            assert [other.step(a) for a in actions[cut:]] == [env.step(a) for a in actions[cut:]]
            assert other.reflection() == env.reflection()


@pytest.mark.parametrize("name", WORLDS)
def test_the_oracle_always_succeeds_and_is_paid_once_at_the_end(name):
    env = registry.make(name)
    for seed in range(200):
        _, _, reward = play(env, seed, Skill())
        assert reward == 1.0
        assert env.reflection()["trajectory_outcome"] == "success"
        assert env.reflection()["retry_from_step"] is None


@pytest.mark.parametrize("name", WORLDS)
def test_withheld_rules_leave_room_to_learn(name):
    env, rng = registry.make(name), random.Random(0)
    rate = sum(play(env, seed, Skill(withheld=4), rng)[2] for seed in range(1000)) / 1000
    assert 0.1 < rate < 0.6


@pytest.mark.parametrize("name", WORLDS)
def test_a_teachers_reflection_parses_and_a_demonstrator_that_heeds_it_succeeds_more(name):
    env, rng = registry.make(name), random.Random(0)
    skill, guided, restarted, failures = Skill(withheld=4), 0.0, 0.0, 0
    for seed in range(300):
        actions, _, reward = play(env, seed, skill, rng)
        thought = env.reflection()
        parsed = reflection.parse(json.dumps(thought), len(actions))
        assert parsed.triggers_retry(len(actions)) == (parsed.trajectory_outcome != "success")
        if reward < 1.0:
            failures += 1
            guided += play(env, seed, skill, rng, parsed.improvement_suggestion)[2]
            restarted += play(env, seed, skill, rng)[2]
    assert guided / failures > 2 * restarted / failures


def test_the_note_overrules_the_world():
    env = registry.make("workshop", exceptions=5)
    first, _ = env.reset(seed=1)
    assert first.startswith("note: ")
    for thing, need in zip(env.state.row, env.state.needs, strict=True):
        assert need != env.rule[thing]
        assert f"{thing} needs {need}" in first


@pytest.mark.parametrize(
    "action", ["", "dance", "use", "use spoon", "look now", "\x00🔥", "use " * 99]
)
def test_an_action_that_is_not_understood_is_answered_in_words_and_counts(action):
    env = registry.make("workshop", steps=6)
    env.reset(seed=0)
    line, reward, terminated, truncated, _ = env.step(action)
    assert "is not understood" in line and "station 0" in line
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.reflection()["retry_from_step"] == 0


def test_a_wasted_step_leaves_success_but_inefficient():
    env = registry.make("workshop")
    env.reset(seed=0)
    env.step(f"use {env.state.needs[0]}")
    env.step("look")
    last = [env.step(f"use {tool}") for tool in env.state.needs[1:]][-1]
    assert last[1] == 1.0
    thought = env.reflection()
    assert thought["trajectory_outcome"] == "success_but_inefficient"
    assert thought["retry_from_step"] == 1


def test_running_out_of_steps_is_a_failure_that_began_with_the_first_wasted_step():
    env = registry.make("workshop", stations=2, steps=2)
    env.reset(seed=0)
    env.step("look")
    line, reward, terminated, truncated, _ = env.step(f"use {env.state.needs[0]}")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert "over" in line
    assert env.reflection()["trajectory_outcome"] == "failure"
    assert env.reflection()["retry_from_step"] == 0


SETTINGS = [
    {"words": 6},
    {"words": 64, "hint": "where"},
    {"summary": "brief"},
    {"hint": "where"},
    {"hint": "none"},
    {"hint": "none", "summary": "brief", "decisive": 2},
    {"decisive": 1},
]


@pytest.mark.parametrize("options", SETTINGS)
def test_any_setting_is_a_sound_world_whose_reflections_parse(options):
    check_env("workshop", options=options)
    env, rng = registry.make("workshop", **options), random.Random(0)
    for seed in range(100):
        assert play(env, seed, Skill())[2] == 1.0
        assert env.reflection()["trajectory_outcome"] == "success"
        actions, _, reward = play(env, seed, CARELESS, rng)
        parsed = reflection.parse(json.dumps(env.reflection()), len(actions))
        assert (parsed.trajectory_outcome == "failure") == (reward < 1.0)
        assert parsed.triggers_retry(len(actions)) == (parsed.trajectory_outcome != "success")


@pytest.mark.parametrize(
    ("options", "given", "choices"),
    [
        ({"words": 65}, "words is 65;", "0..64"),
        ({"words": True}, "words is True;", "0..64"),
        ({"summary": "long"}, "summary is 'long';", "full or brief"),
        ({"hint": None}, "hint is None;", "what or where or none"),
        ({"decisive": 0}, "decisive is 0;", "1..5"),
        ({"stations": 3, "decisive": 4}, "decisive is 4;", "1..3"),
    ],
)
def test_a_dial_out_of_range_is_refused_with_the_range(options, given, choices):
    with pytest.raises(UserError, match=given) as refused:
        registry.make("workshop", **options)
    assert str(refused.value).endswith(f" {choices}")
    with pytest.raises(UserError, match=r"workshop\.loud: unknown; .*decisive"):
        registry.make("workshop", loud=1)


def test_a_thought_is_64_words_of_which_no_two_are_alike():
    words = THOUGHT.split()
    assert len(words) == len(set(words)) == 64
    env = registry.make("workshop")
    assert not set(words) & {*env.answers, *env.things, "look", "use"}


def test_only_the_words_after_a_thought_are_judged():
    env = registry.make("workshop", words=6)
    assert env.spec.max_response_tokens == 14 and registry.make("workshop").spec.max_steps == 7
    env.reset(seed=0)
    need = env.state.needs[0]
    assert env.demonstrate(Skill(), random.Random(0)) == f"say first what this task is use {need}"
    assert env.demonstration()[0] == f"say first what this task is use {need}"
    for thought in ("say first what this task is", "hm", "look", ""):
        env.reset(seed=0)
        assert env.step(f"{thought} use {need}")[4]["mark"] == "right"
        assert env.step(f"{thought} look")[0].startswith("nothing happens.")
    line = env.step("use " + "x" * 999)[0]
    assert line.startswith('"use xxxx') and "is not understood" in line and len(line) < 140


def test_a_brief_summary_lists_only_what_was_not_right():
    env = registry.make("workshop", stations=3, summary="brief")
    assert _attempt(env, "right right right")["trajectory_summary"] == "all right"
    thought = _attempt(env, "right wasted wrong right")
    assert thought["trajectory_summary"] == "step 1 wasted, 2 spoils"
    env = registry.make("workshop", stations=3)
    thought = _attempt(env, "right wasted wrong right")
    assert thought["trajectory_summary"] == "step 0 fits, 1 wasted, 2 spoils, 3 fits"


def test_where_says_that_an_answer_was_wrong_and_rules_it_out():
    env = registry.make("workshop", exceptions=0, hint="where")
    env.reset(seed=0)
    thing, need = env.state.row[0], env.state.needs[0]
    wrong = next(tool for tool in env.answers if tool != need)
    assert env.step(f"use {wrong}")[0].startswith("it spoils. station 1 has ")
    for right in env.state.needs[1:]:
        env.step(f"use {right}")
    thought = env.reflection()
    assert thought["improvement_suggestion"] == f"remember not {wrong} for {thing}"
    assert thought["retry_from_step"] == 0
    env.reset(seed=0)
    skill, rng = Skill(withheld=12), random.Random(0)
    said = {env.demonstrate(skill, rng, thought["improvement_suggestion"]) for _ in range(200)}
    assert said == {f"use {tool}" for tool in env.answers if tool != wrong}


def test_with_no_hint_wrong_and_right_look_the_same_and_a_failure_is_retried_from_the_start():
    env = registry.make("workshop", stations=3, hint="none")
    env.reset(seed=0)
    lines = []
    for k, need in enumerate(env.state.needs):
        wrong = next(tool for tool in env.answers if tool != need)
        lines.append(env.step(f"use {wrong if k == 1 else need}")[0].partition(".")[0])
    assert lines == ["it is done"] * 3 and env.feedback() == "2 of 3 right."
    assert env.reflection() == {
        "trajectory_summary": "step 0 done, 1 done, 2 done",
        "root_cause_analysis": None,
        "trajectory_outcome": "failure",
        "improvement_suggestion": "try again from step 0",
        "retry_from_step": 0,
    }
    brief = registry.make("workshop", stations=3, hint="none", summary="brief")
    thought = _attempt(brief, "wrong right right")
    assert thought["trajectory_summary"] == "2 of 3 right"
    thought = _attempt(brief, "wasted wrong right right")
    assert thought["trajectory_summary"] == "step 0 wasted"
    assert thought["improvement_suggestion"] == "try again from step 0, not to look"


def test_only_the_decisive_stations_count_and_the_seed_draws_them():
    env = registry.make("workshop", decisive=2)
    drawn = set()
    for seed in range(50):
        first, _ = env.reset(seed=seed)
        assert first == registry.make("workshop").reset(seed=seed)[0]
        counted = set(env.state.counted)
        assert len(counted) == 2
        drawn |= counted
        for missed in range(5):
            env.reset(seed=seed)
            marks = ["wrong" if place == missed else "right" for place in range(5)]
            thought = _attempt(env, " ".join(marks), seed)
            assert env.feedback() == "4 of 5 right."
            assert (thought["trajectory_outcome"] == "failure") == (missed in counted)
            assert thought["retry_from_step"] == (missed if missed in counted else None)
    assert drawn == set(range(5))


def test_the_default_dials_change_nothing():
    assert Dials() == Dials(words=0, summary="full", hint="what")
    told = registry.make("workshop", **registry.make("workshop").told())
    assert told.reset(seed=3)[0].count(" needs ") == 5


def _attempt(env, marks, seed=0):
    """The reflection on an attempt whose steps come out as `marks` say."""
    env.reset(seed=seed)
    for mark in marks.split():
        need = env.state.needs[env.state.place]
        wrong = next(answer for answer in env.answers if answer != need)
        env.step("look" if mark == "wasted" else f"use {need if mark == 'right' else wrong}")
    return env.reflection()
