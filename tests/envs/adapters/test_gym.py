"""Gymnasium environments by id: text worlds, own text spaces, names, limits, refusals."""

import random

import pytest

from envs import registry
from envs.base import Skill
from envs.demonstrations import demonstrating
from envs.testing import check_env
from r3l.errors import UserError

gymnasium = pytest.importorskip("gymnasium", reason="pip install 'r3l[gym]'")
TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
CLIFF = next(name for name in ("CliffWalking-v1", "CliffWalking-v0") if name in gymnasium.registry)


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("FrozenLake-v1", {"make": {"is_slippery": False}}),
        ("FrozenLake-v1", {}),
        ("FrozenLake8x8-v1", {"make": {"is_slippery": False}, "max_steps": 30}),
        (CLIFF, {}),
        (TAXI, {"max_steps": 30}),
        (TAXI, {"pays": "own", "success_threshold": 8.0}),
        ("Blackjack-v1", {}),
    ],
)
def test_gymnasiums_own_text_worlds_conform(env_id, options):
    check_env(f"gym:{env_id}", options=options)


def test_a_lake_is_shown_with_the_player_marked_and_actions_have_names():
    env = registry.make("gym:FrozenLake-v1", make={"is_slippery": False})
    first, info = env.reset(seed=0)
    assert first == "You are at row 0 column 0.\nP F F F\nF H F H\nF F F H\nH F F G"
    assert "Actions: left, down, right, up." in env.spec.system_prompt
    assert {"left", "0"} <= set(info["admissible"]) and env.spec.max_steps == 100
    text, reward, *_ = env.step("It is safe to the right. <action>Right</action>")
    assert text.startswith("You are at row 0 column 1.\nS P F F") and reward == 0.0
    text, reward, terminated, truncated, _ = env.step("<action>fly</action>")
    assert text == "There is no such action; say one of left, down, right, up."
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.demonstration() == ["right", "down", "down", "down", "right"]
    slippery = registry.make("gym:FrozenLake-v1")
    slippery.reset(seed=0)
    assert slippery.demonstration() == []


def test_a_taxi_says_where_all_are_and_pays_to_finish():
    env = registry.make(f"gym:{TAXI}", max_steps=30)
    env.reset(seed=0)
    way = env.demonstration()
    texts = []
    for action in way:
        text, reward, terminated, truncated, _ = env.step(action)
        texts.append(text)
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert way[-1] == "dropoff" and way.count("pickup") == 1
    assert "The passenger is in the taxi." in texts[way.index("pickup")]
    assert texts[0].startswith("The taxi is at row ") and "The destination is " in texts[0]
    assert env.feedback() == "The total reward is 1." and "|R: | : :G|" in env.spec.system_prompt
    env.reset(seed=0)
    assert env.step("dropoff")[1:4] == (0.0, False, False)
    assert env.spec.max_steps == 30


def test_a_taxis_demonstrator_is_made_of_its_demonstrations():
    env = demonstrating(f"gym:{TAXI}", max_steps=30)
    for seed in range(5):
        env.reset(seed=seed, options={})
        total, ended, rng = 0.0, False, random.Random(0)
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.demonstrate(Skill(), rng))
            total, ended = total + reward, terminated or truncated
        assert total == 1.0 and env.reflection()["trajectory_outcome"] == "success"


def test_a_cliff_and_cards_are_put_into_words():
    cliff = registry.make(f"gym:{CLIFF}")
    first, _ = cliff.reset(seed=0)
    assert first.endswith("P C C C C C C C C C C G") and "row 3 column 0." in first
    assert len(cliff.demonstration()) == 13
    cards = registry.make("gym:Blackjack-v1")
    first, _ = cards.reset(seed=0)
    assert first.startswith("Your sum is ") and "The dealer shows " in first
    assert cards.demonstration() == []


def test_with_its_own_rewards_a_taxi_is_demonstrated_only_if_the_total_suffices():
    env = registry.make(f"gym:{TAXI}", pays="own", success_threshold=8.0)
    shown = []
    for seed in range(40):
        env.reset(seed=seed)
        way = env.demonstration()
        shown.append(bool(way))
        if way:
            assert sum(env.step(action)[1] for action in way) == 21 - len(way) >= 8
    assert 5 < sum(shown) < 35


class Echo(gymnasium.Env):
    """Pays for saying back what it said."""

    def __init__(self):
        characters = "abcdefghijklmnopqrstuvwxyz "
        self.observation_space = gymnasium.spaces.Text(20, charset=characters)
        self.action_space = gymnasium.spaces.Text(20, charset=characters)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word = "say " + "".join(self.np_random.choice(list("abc"), 3))
        return self.word, {}

    def step(self, action):
        right = action == self.word[4:]
        return "yes" if right else "no", float(right), right, False, {}


class Dial(gymnasium.Env):
    """Renders its number in red, as terminals do."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012 (as Gymnasium's own)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = self.action_space = gymnasium.spaces.Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 1
        return self.at, {}

    def step(self, action):
        assert action in self.action_space
        self.at = int(action)
        return self.at, float(self.at == 3), self.at == 3, False, {}

    def render(self):
        return f"dial \x1b[41m{self.at}\x1b[0m of \x1b[32m3\x1b[0m\n"


@pytest.fixture
def registered():
    gymnasium.register("R3LEcho-v0", entry_point=Echo, max_episode_steps=4)
    gymnasium.register("R3LDial-v0", entry_point=Dial)
    yield
    del gymnasium.registry["R3LEcho-v0"], gymnasium.registry["R3LDial-v0"]


def test_a_registered_text_environment_works_by_name(registered):
    check_env("gym:R3LEcho-v0")
    env = registry.make("gym:R3LEcho-v0")
    first, _ = env.reset(seed=3)
    assert env.spec.max_steps == 4 and env.spec.name == "gym:R3LEcho-v0"
    assert "not understood" in env.step("ÄÖÜ!")[0]
    assert env.step(first[4:])[1:3] == (1.0, True)
    env.reset(seed=3)
    assert [env.step("x")[3] for _ in range(4)] == [False, False, False, True]


def test_numbered_actions_start_where_the_space_does_and_colours_become_brackets(registered):
    check_env("gym:R3LDial-v0")
    env = registry.make("gym:R3LDial-v0", actions=["low", "middle", "high"], prompt="Turn it up.")
    assert env.reset(seed=0)[0] == "dial [1] of 3"
    assert env.spec.system_prompt.startswith("Turn it up. Actions: low, middle, high. ")
    assert env.step("2")[0] == "dial [2] of 3"
    assert env.step("High")[:3] == ("dial [3] of 3", 1.0, True)
    assert env.spec.max_steps == 100


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("gym:NoSuchThing-v0", {}, "doesn't exist; give the id of a registered environment"),
        ("gym:FrozenLake-v99", {}, "give the id of a registered environment"),
        ("gym:no_such_module:Thing-v0", {}, "no_such_module"),
        ("gym:CartPole-v1", {}, r"its observations are Box\(.*; only texts and Discrete numbers"),
        ("gym:Pendulum-v1", {}, r"its actions are Box\("),
        ("gym:FrozenLake-v1", {"actions": ["left"]}, "has 1 names, but there are 4 actions"),
        ("gym:FrozenLake-v1", {"colour": 1}, "colour: unknown"),
        ("gym:FrozenLake-v1", {"make": {"map_name": "5x5"}}, "gym:FrozenLake-v1"),
        ("gym:FrozenLake-v1", {"make": {"ice": True}}, "cannot be made"),
        ("gym:FrozenLake-v1", {"pays": "twice"}, "pays is 'twice'; it must be own or finish"),
        ("gym:FrozenLake-v1", {"max_steps": -1}, "max_steps is -1"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused_in_one_line(name, options, line):
    with pytest.raises(UserError, match=line) as caught:
        registry.make(name, **options)
    assert "\n" not in str(caught.value)
