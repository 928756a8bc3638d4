"""Fixtures of the question environments: a file of problems, a verifier, one posed problem."""

import json

import pytest

from envs import registry
from envs.questions.datasets import load
from envs.questions.verifier import Verifier


@pytest.fixture(scope="module")
def verifier():
    pytest.importorskip("math_verify")
    made = Verifier(cpu_s=2.0)
    yield made
    made.close()


@pytest.fixture
def file(tmp_path):
    def write(*rows):
        path = tmp_path / "problems.jsonl"
        path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
        load.cache_clear()
        return str(path)

    return write


@pytest.fixture
def half(file):
    """The environment on one problem, by options; posed."""
    pytest.importorskip("math_verify")
    path = file({"prompt": "What is 1/2 of 1?", "answer": "0.5", "solution": "One.\n\nHalf it."})
    made = []

    def make(**options):
        made.append(env := registry.make("math", train=path, **options))
        assert env.reset(seed=0)[0] == "What is 1/2 of 1?"
        return env

    yield make
    for env in made:
        env.close()
