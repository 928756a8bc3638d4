"""The environment with its demonstrator."""

from envs.base import Demonstrating
from envs.testing import check_env
from lab.tests.scienceworld.conftest import GUIDED


def test_the_world_of_the_small_policy_conforms(small):
    options = {"tasks": ["find-*", "lifespan-*"], "brief": True}
    check_env(GUIDED, seeds=(0, 90117), options=options)
    assert isinstance(small, Demonstrating)
