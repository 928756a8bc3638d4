"""Gymnasium environments by id: text spaces, numbered actions, names, limits."""

import subprocess
import sys

import pytest

from envs import registry
from envs.testing import check_env
from r3l.errors import UserError

gymnasium = pytest.importorskip("gymnasium", reason="pip install 'r3l[gym]'")


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("FrozenLake-v1", {"make": {"is_slippery": False}}),
        ("FrozenLake-v1", {}),
        ("CliffWalking-v1", {}),
        ("Taxi-v3", {"success_threshold": 8.0}),
        ("Blackjack-v1", {}),
    ],
)
def test_gymnasiums_own_text_worlds_conform(env_id, options):
    if env_id.startswith("Taxi"):
        env_id = next(i for i in ("Taxi-v4", "Taxi-v3") if i in gymnasium.registry)
    check_env(f"gym:{env_id}", options=options)


def test_a_map_is_shown_as_text_with_the_player_marked_and_actions_have_names():
    env = registry.make("gym:FrozenLake-v1", make={"is_slippery": False})
    first, _ = env.reset(seed=0)
    assert first.endswith("[S]FFF\nFHFH\nFFFH\nHFFG")
    assert "left, down, right, up" in env.spec.system_prompt
    text, reward, *_ = env.step("It is safe to the right. <action>Right</action>")
    assert "S[F]FF" in text and reward == 0.0
    text, reward, terminated, truncated, _ = env.step("<action>fly</action>")
    assert text == "There is no such action; say one of left, down, right, up."
    assert (reward, terminated, truncated) == (0.0, False, False)
    env.step("down")
    assert env.spec.max_steps == 100


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


@pytest.fixture
def echo():
    gymnasium.register("R3LEcho-v0", entry_point=Echo, max_episode_steps=4)
    yield "gym:R3LEcho-v0"
    del gymnasium.registry["R3LEcho-v0"]


def test_a_registered_text_environment_works_by_name(echo):
    check_env(echo)
    env = registry.make(echo)
    first, _ = env.reset(seed=3)
    assert env.spec.max_steps == 4 and env.spec.name == echo
    assert "not understood" in env.step("ÄÖÜ!")[0]
    assert env.step(first[4:])[1:3] == (1.0, True)
    env.reset(seed=3)
    assert [env.step("x")[3] for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("gym:NoSuchThing-v0", {}, "not registered with Gymnasium"),
        ("gym:CartPole-v1", {"actions": ["left"]}, "has 1 names, but there are 2 actions"),
        ("gym:FrozenLake-v1", {"colour": 1}, "colour: unknown"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused_in_one_line(name, options, line):
    with pytest.raises(UserError, match=line) as caught:
        registry.make(name, **options)
    assert "\n" not in str(caught.value)


def test_only_the_environment_asked_for_imports_gymnasium():
    code = (
        "import sys; from envs import registry; registry.make('keys');"
        "sys.exit(any(m in sys.modules for m in ('gymnasium', 'textworld', 'scienceworld')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
