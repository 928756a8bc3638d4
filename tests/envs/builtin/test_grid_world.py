"""What both worlds on a grid keep: replay, snapshots, reward, demonstrators and teachers."""

import json
import random
import re

import pytest

from envs import registry
from envs.base import Demonstrating, Skill
from envs.builtin.grid_world import beside, direction_in
from envs.testing import check_env
from r3l.errors import UserError
from r3l.rollout import reflection
from tests.envs.builtin.test_matching import play

WORLDS = ("frozen_lake", "sokoban")
OUTCOMES = {"None", "success", "success_but_inefficient", "failure", "but", "inefficient"}
CARELESS = Skill(mistakes=0.3, waste=0.2)
SETTINGS = [
    ("frozen_lake", {"size": 6, "holes": 9}),
    ("frozen_lake", {"map": "hidden"}),
    ("frozen_lake", {"slippery": True, "steps": 40}),
    ("sokoban", {"size": 5, "boxes": 2, "walls": 2, "longest": 16}),
    ("sokoban", {"walls": 0, "steps": 30}),
]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in WORLDS), *SETTINGS])
def test_a_world_on_a_grid_conforms(name, options):
    check_env(name, options=options)
    assert isinstance(registry.make(name, **options), Demonstrating)


@pytest.mark.parametrize("name", WORLDS)
def test_a_snapshot_taken_anywhere_continues_as_the_original_did(name):
    env, other = registry.make(name), registry.make(name)
    for seed in range(8):
        actions, _, _ = play(env, seed, CARELESS)
        for cut in range(len(actions)):
            env.reset(seed=seed)
            for action in actions[:cut]:
                env.step(action)
            other.reset(seed=seed + 1)
            other.restore(env.snapshot())
            assert [other.step(a) for a in actions[cut:]] == [env.step(a) for a in actions[cut:]]
            assert other.reflection() == env.reflection()
            assert other.feedback() == env.feedback()


@pytest.mark.parametrize("name", WORLDS)
def test_the_demonstrator_takes_a_shortest_way_and_is_paid_once_at_the_end(name):
    env = registry.make(name)
    for seed in range(40):
        env.reset(seed=seed)
        way = env.demonstration()
        rewards = [env.step(action)[1] for action in way]
        assert rewards == [0.0] * (len(way) - 1) + [1.0]
        assert env.reflection() == {
            "trajectory_summary": f"{len(way)} steps, the goal",
            "root_cause_analysis": None,
            "trajectory_outcome": "success",
            "improvement_suggestion": None,
            "retry_from_step": None,
        }


@pytest.mark.parametrize("name", WORLDS)
def test_a_demonstrator_that_wastes_steps_still_succeeds(name):
    env, rng = registry.make(name, steps=200), random.Random(0)
    assert all(play(env, seed, Skill(waste=0.3), rng)[2] == 1.0 for seed in range(20))


@pytest.mark.parametrize("name", WORLDS)
def test_a_teachers_reflection_parses_and_its_advice_makes_a_retry_from_the_pivot_succeed(name):
    env, rng = registry.make(name), random.Random(0)
    outcomes = set()
    for seed in range(60):
        actions, _, reward = play(env, seed, CARELESS, rng)
        parsed = reflection.parse(json.dumps(env.reflection()), len(actions))
        outcomes.add(parsed.trajectory_outcome)
        assert (parsed.trajectory_outcome == "failure") == (reward < 1.0)
        assert parsed.triggers_retry(len(actions)) == (parsed.trajectory_outcome != "success")
        if reward < 1.0:
            pivot, advice = parsed.retry_from_step, parsed.improvement_suggestion
            env.reset(seed=seed)
            for action in actions[:pivot]:
                env.step(action)
            blind = Skill(mistakes=1.0)  # does only as it is told
            assert env.demonstrate(blind, random.Random(1), advice) in advice
            total = 0.0
            while not env.state.ended:
                total += env.step(env.demonstrate(Skill(), rng, advice))[1]
            assert total == 1.0
    assert outcomes == {"success", "success_but_inefficient", "failure"}


@pytest.mark.parametrize("name", WORLDS)
def test_remarks_never_say_a_direction_that_was_not_taken(name):
    """The last line of the system prompt aside, only the response names directions."""
    env, rng = registry.make(name), random.Random(0)
    for seed in range(15):
        actions, observations, _ = play(env, seed, CARELESS, rng)
        for action, observation in zip(actions, observations[1:], strict=True):
            assert direction_in(observation) in ("", action)


@pytest.mark.parametrize("name", WORLDS)
def test_a_response_without_a_direction_changes_nothing_and_counts(name):
    env = registry.make(name)
    first, info = env.reset(seed=0)
    assert info == {"admissible": ["up", "down", "left", "right"]}
    for action in ("", "jump", "upright", "\x00🔥"):
        text, reward, terminated, truncated, _ = env.step(action)
        assert "is not understood. Say up, down, left or right." in text and text.endswith(first)
        assert (reward, terminated, truncated) == (0.0, False, False)
    thought = env.reflection()
    assert thought["retry_from_step"] == 0 and "no direction" in thought["root_cause_analysis"]
    for _ in range(env.spec.max_steps - 4):
        last = env.step("jump")
    assert last[3] and "it is over." in last[0]
    assert env.step("up") == ("it is over.", 0.0, True, False, {})


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in WORLDS), *SETTINGS])
def test_the_vocabulary_has_every_word_that_is_ever_said(name, options):
    env, rng = registry.make(name, **options), random.Random(0)
    known = set(re.findall("[A-Za-z]+", " ".join(env.vocabulary())))
    for seed in range(20):
        _, observations, _ = play(env, seed, CARELESS, rng)
        said = [*observations, env.feedback(), *map(str, env.reflection().values())]
        said += [env.reset(seed=seed)[0], env.step("")[0]]
        assert set(re.findall("[A-Za-z]+", " ".join(said))) - known <= OUTCOMES


@pytest.mark.parametrize(
    ("response", "direction"),
    [
        ("right", "right"),
        ("<action>Down</action>", "down"),
        ("Up is a hole, and left too. So: DOWN.", "down"),
        ("upwards", ""),
        ("", ""),
    ],
)
def test_the_last_direction_named_is_taken(response, direction):
    assert direction_in(response) == direction


def test_the_neighbour_of_a_cell_at_the_edge_is_the_cell_itself():
    assert [beside(0, way, 3) for way in ("up", "down", "left", "right")] == [0, 3, 0, 1]
    assert [beside(5, way, 3) for way in ("up", "down", "left", "right")] == [2, 8, 4, 5]


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("frozen_lake", {"size": 1}, "size is 1; it must be an integer in 2..9"),
        ("frozen_lake", {"holes": 6}, r"holes is 6; .* 0..5"),
        ("frozen_lake", {"map": "seen"}, "map is 'seen'; it must be shown or hidden"),
        ("frozen_lake", {"slippery": "no"}, "slippery: must be true or false"),
        ("frozen_lake", {"steps": 5}, r"steps is 5; .* 6..1000"),
        ("sokoban", {"size": 8}, r"size is 8; .* 4..7"),
        ("sokoban", {"boxes": 0}, r"boxes is 0; .* 1..3"),
        ("sokoban", {"walls": 5}, r"walls is 5; .* 0..4"),
        ("sokoban", {"longest": 7}, r"longest is 7; .* 8..20"),
        ("sokoban", {"shortest": 9}, r"shortest is 9; .* 1..8"),
        ("sokoban", {"steps": 11}, r"steps is 11; .* 12..1000"),
        ("sokoban", {"max_response_tokens": 1}, r"max_response_tokens is 1; .* 4..100000"),
    ],
)
def test_an_option_out_of_range_is_refused_with_the_range(name, options, line):
    with pytest.raises(UserError, match=line) as caught:
        registry.make(name, **options)
    assert "\n" not in str(caught.value)
