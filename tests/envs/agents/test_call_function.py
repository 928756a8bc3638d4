"""A function is found and called, also if it is asynchronous."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.agents.agent_steps import outcome_of
from envs.agents.call_function import MODULE, _listed, call, children_of, find
from r3l.errors import EnvironmentFailed
from tests.r3l.rollout.test_env_calls import NO_NUMBERS, NUMBERS


def counted(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*given: Any) -> Any:
        return function(*given)

    return inner


def given_all(function: Any) -> Any:
    @functools.wraps(function)
    def inner(a: Any, b: Any, c: Any) -> Any:
        return [*function(a, b), c]

    return inner


def test_a_function_is_found_and_its_result_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # `find` leaves both behind, which is right only in a process of its own.
    monkeypatch.setitem(sys.modules, MODULE, sys)
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "f.py"
    file.write_text(
        "async def late(a, b):\n    print('noise', end='')\n    return {'sum': a + b}\n"
    )
    call(find(f"{file}:late"), [1, 2])
    assert json.loads(capsys.readouterr().out.split("\n")[1]) == {"sum": 3}
    with pytest.raises(SystemExit, match="defines no function other"):
        find(f"{file}:other")


def test_a_file_edited_within_a_second_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, MODULE, sys)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "f.py"
    for value in (1, 2):  # texts of one length
        file.write_text(f"def play():\n    return {value}\n")
        os.utime(file, (1e9, 1e9))
        assert find(f"{file}:play")() == value


@pytest.mark.parametrize(("given", "number"), NUMBERS, ids=lambda value: repr(value))
def test_a_number_of_any_library_is_said_as_an_environments_is_read(
    given: Any, number: float, capsys: pytest.CaptureFixture[str]
) -> None:
    call(lambda: given, [])
    assert outcome_of(json.loads(capsys.readouterr().out), 1.0, "x").reward == number
    call(lambda: {"reward": given, "parts": {"form": given}}, [])
    outcome = outcome_of(json.loads(capsys.readouterr().out), 1.0, "x")
    assert (outcome.reward, outcome.parts) == (number, {"form": number})


@pytest.mark.parametrize("given", NO_NUMBERS, ids=lambda value: repr(value))
def test_what_is_no_finite_number_is_no_reward(
    given: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        call(lambda: given, [])
    except TypeError as error:  # the grader fails with this line
        assert "is not JSON serializable" in str(error)
        return
    with pytest.raises(EnvironmentFailed):
        outcome_of(json.loads(capsys.readouterr().out), 1.0, "x")


def test_the_children_of_a_process_are_listed_in_two_ways() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        assert child.pid in children_of(os.getpid())
        assert sorted(children_of(os.getpid())) == sorted(_listed(os.getpid()))
        assert children_of(child.pid) == _listed(child.pid) == []
        child.kill()
    assert children_of(child.pid) == []


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda: "none", "none"),
        (lambda a, b: [a, b], [1, 2]),
        (lambda a, b, c=0, *, d=4: [a, b, c, d], [1, 2, 3, 4]),
        (lambda *all_: list(all_), [1, 2, 3]),
        (max, 3),
        (counted(lambda a, b: [a, b]), [1, 2]),
        (given_all(lambda a, b: [a, b]), [1, 2, 3]),
    ],
)
def test_a_function_gets_as_many_arguments_as_it_takes(
    function: Any, said: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    call(function, [1, 2, 3])
    assert json.loads(capsys.readouterr().out) == said
