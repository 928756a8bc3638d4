"""The error with which a program ends is one line, with the place in the user's code."""

import sys
from concurrent.futures import Executor
from pathlib import Path
from subprocess import run

import pytest

from envs.agents.last_error import last_error

NESTED = """
import json
def grade(text):
    return json.loads(text)
grade("x")
"""
LONG = """
raise ValueError("1 value is wrong\\n  answer\\nFor further information visit a page")
"""
GROUP = """
import asyncio
async def boom():
    raise KeyError("order")
async def main():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(boom())
asyncio.run(main())
"""
TRACEBACK = """Traceback (most recent call last):
  File "{}", line 3, in f
    f()
OSError: no
"""


@pytest.mark.parametrize(
    ("source", "said", "line"),
    [
        (NESTED, "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", 4),
        (LONG, "ValueError: 1 value is wrong … For further information visit a page", 2),
        (GROUP, "KeyError: 'order'", 4),
    ],
)
def test_an_exception_is_named_with_the_line_of_the_users_code(
    source: str, said: str, line: int, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source)
    ended = run([sys.executable, file], capture_output=True, text=True, check=False)
    assert last_error(ended.stderr) == f"{said} ({file}:{line})"


def test_an_output_without_a_traceback_is_its_last_line() -> None:
    assert last_error("loading\nno such order\n\n") == "no such order"
    assert last_error(" \n") == ""


def test_a_library_without_a_caller_in_the_users_code_has_no_place() -> None:
    file = sys.modules[Executor.__module__].__file__
    text = (
        f'Traceback (most recent call last):\n  File "{file}", line 3, in f\n    f()\nOSError: no\n'
    )
    assert last_error(text) == "OSError: no"
    assert last_error(text.replace(str(file), "/a/lib/python3.13/site-packages/b.py")) == (
        "OSError: no"
    )


def test_what_a_program_says_after_a_traceback_is_kept() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/a/b.py", line 3, in f\n    f()\nOSError: no\n'
    )
    assert last_error(text + "giving up\n") == "OSError: no … giving up (/a/b.py:3)"
