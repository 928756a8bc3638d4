"""Ends a process that uses torch.

A thread of gloo may outlive its process group. Such a thread may abort the process while the
interpreter shuts down. A successful run then seems to crash.
"""

import atexit
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Runs the exit handlers, flushes the output and ends this process. Skips the rest of the
    shutdown."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
