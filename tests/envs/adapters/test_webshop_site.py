"""The shop of a checkout: loaded once per process, with the same goals in every process."""

import logging
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from envs import registry
from envs.adapters import webshop_site
from r3l.errors import UserError
from tests.envs.adapters.shop import checkout

ROOT = Path(__file__).parents[3]


def test_goals_are_the_same_in_every_process_and_the_global_generator_is_left_alone(shop):
    program = (
        "import random, sys, zlib\n"
        "from envs import registry\n"
        "random.seed(int(sys.argv[2]))\n"
        "before = random.getstate()\n"
        "env = registry.make('webshop', checkout=sys.argv[1])\n"
        "env.reset(seed=int(sys.argv[2]))\n"
        "assert random.getstate() == before\n"
        "print(zlib.crc32(repr([g['instruction_text'] for g in env.server.goals]).encode()))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program, str(shop), seed],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and "\n" in said.pop()


def test_sessions_of_finished_attempts_are_forgotten(shop):
    env, other = (registry.make("webshop", checkout=str(shop)) for _ in range(2))
    assert env.server is other.server
    for seed in range(20):
        env.reset(seed=seed)
        other.reset(seed=seed)
    assert len(env.server.user_sessions) == 2
    env.close()
    other.close()
    assert not env.server.user_sessions


def test_a_missing_package_of_upstream_is_named(tmp_path):
    pytest.importorskip("bm25s", reason="pip install 'r3l[webshop]'")
    folder = checkout(tmp_path / "checkout")
    code = folder / webshop_site.CODE
    code.write_text(f"import no_such_thing\n{code.read_text()}")
    with pytest.raises(UserError, match=r"no_such_thing; .*'r3l\[webshop\]'"):
        registry.make("webshop", checkout=str(folder))


def test_upstream_draws_the_same_numbers_each_time_and_leaves_the_global_generator_as_it_was():
    random.seed(7)
    before, drawn = random.getstate(), []
    for _ in range(2):
        with webshop_site.seeded():
            drawn.append(random.random())
    assert drawn[0] == drawn[1] and random.getstate() == before


def test_a_missing_library_is_replaced_with_a_warning(caplog):
    assert not webshop_site._replaces("Lucene", "") and not caplog.records
    with caplog.at_level(logging.WARNING):
        assert webshop_site._replaces("Lucene", "an index")
    assert "replaced because an index" in caplog.text


def test_an_unknown_choice_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="option goals is 'all'"):
        webshop_site.Settings("", 0, "all")
