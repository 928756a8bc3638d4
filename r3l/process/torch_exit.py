"""Ends a process that uses torch.

A thread of gloo may outlive its process group. Such a thread may abort the process while the
interpreter shuts down. A successful run then seems to crash.
"""

import atexit
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Ends this process with an exit code. Runs the exit handlers and flushes the output, but skips
    the rest of the interpreter's shutdown."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
