"""Reads the error with which a program's standard error ends.

Traceback (most recent call last):
  File "/home/me/grade.py", line 7, in grade       the newest line of the user's own code
  File "/usr/lib/python3.12/json/decoder.py", …    a library's
ValueError: what went wrong                        the error, which may have several lines
"""

import re
from pathlib import Path

_OURS = [str(Path(__file__).with_name(name)) for name in ("call_function.py", "remote_agent.py")]
_FRAME = re.compile(r'\s*File "(.+)", line (\d+)')
_LIBRARY = re.compile(r"<|.*/(?:site-packages|dist-packages|lib(?:64)?/python3\.\d+)/")
_GROUP = re.compile(r"^ *(?:\+-[-+ .\d]*|\| ?)")
"""What a traceback of an exception group has before its lines, or all of such a line."""


def last_error(text: str) -> str:
    """Returns the last line of a text; after a traceback, the first and the last line of the error,
    and the newest line of the user's code. Returns "" for an empty text."""
    lines = [_GROUP.sub("", line).rstrip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return ""
    places = [(i, found) for i, line in enumerate(lines) if (found := _FRAME.match(line))]
    last = lines[-1].strip()
    if not places:
        return last
    raised = [line for line in lines[places[-1][0] + 1 :] if not line.startswith(" ")]
    error = " … ".join(dict.fromkeys([*raised[:1], last]))
    own = [found for _, found in places if not _of_library(found[1])]
    return error + (f" ({own[-1][1]}:{own[-1][2]})" if own else "")


def _of_library(file: str) -> bool:
    """Whether a file of a traceback is r3l's starter or a library's."""
    return file in _OURS or _LIBRARY.match(file) is not None
