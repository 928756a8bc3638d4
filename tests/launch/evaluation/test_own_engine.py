"""An engine for one command: what it prints goes into its log."""

import asyncio
import os

import pytest

from launch.evaluation.own_engine import output_into, own_engine
from r3l.config import load
from r3l.errors import EngineDead


def test_what_others_print_is_not_between_the_json(tmp_path, capfd):
    with output_into(tmp_path / "log"):
        os.write(1, b"an engine starts\n")
        os.system("echo so does its process >&2")
    print("{}")
    assert capfd.readouterr() == ("{}\n", "")
    assert (tmp_path / "log").read_text() == "an engine starts\nso does its process\n"


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (b"its own words\n", r"did not start \(log: .*/log\)"),
        (
            b"  at line 3\nValueError: no memory is free\n",
            r"did not start: ValueError: no memory is",
        ),
    ],
)
def test_an_engine_that_does_not_start_is_named_with_its_log(
    tmp_path, monkeypatch, capfd, printed, said
):
    def start(model, actor, *, seed):
        os.write(1, printed)
        raise EngineDead("the engine did not start")

    monkeypatch.setattr("actors.engine.VLLMPolicy.start", start)

    async def begin():
        async with own_engine(load(), tmp_path / "log"):
            pass

    with pytest.raises(EngineDead, match=said):
        asyncio.run(begin())
    assert capfd.readouterr().out == ""
