"""The end of a process with torch in it.

gloo's threads live on after their process group was left, for as long as anything refers to it.
While the interpreter takes itself apart, such a thread can abort the process, and a run that ended
well looks as if it had crashed.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """End this process with an exit code: run the exit handlers and write out what was said, but
    leave the rest of the interpreter to the operating system."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
