"""ScienceWorld with its demonstrator on the real Java machine; tests that need it skip without."""

from pathlib import Path

import pytest

from envs import registry
from tests.envs.adapters.scienceworld.conftest import java

__all__ = ["java"]
GUIDED = f"{Path(__file__).parents[3]}/lab/scienceworld/guided.py:GuidedScienceWorld"


@pytest.fixture(scope="module")
def env(java):
    env = registry.make(GUIDED, timeout_s=300)
    yield env
    env.close()


@pytest.fixture(scope="module")
def small(java):
    """The world of the small policy."""
    tasks = ["find-*", "lifespan-*"]
    env = registry.make(GUIDED, tasks=tasks, brief=True, max_steps=14, timeout_s=300)
    yield env
    env.close()
