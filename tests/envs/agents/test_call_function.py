"""A function is found and called, also if it is asynchronous."""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.agents.call_function import MODULE, call, find


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
