"""ScienceWorld on its real Java machine; tests that need it skip without it."""

import shutil

import pytest

from envs import registry


@pytest.fixture(scope="session")
def java():
    """Skips without the library or Java."""
    pytest.importorskip("scienceworld", reason="pip install 'r3l[scienceworld]'")
    if shutil.which("java") is None:
        pytest.skip("no Java: apt-get install default-jre-headless")


@pytest.fixture(scope="module")
def env(java):
    env = registry.make("scienceworld", timeout_s=300)
    yield env
    env.close()


@pytest.fixture(scope="module")
def small(java):
    """The world of the small policy."""
    tasks = ["find-*", "lifespan-*"]
    env = registry.make("scienceworld", tasks=tasks, brief=True, max_steps=14, timeout_s=300)
    yield env
    env.close()
