"""Ends a process that uses torch.

gloo's threads outlive a destroyed process group as long as anything refers to it. Such a thread can
abort the process while the interpreter shuts down, and a successful run then seems to have crashed.
"""

import atexit
import os
import sys
from typing import NoReturn


def end_process(code: int) -> NoReturn:
    """Ends this process with an exit code: runs the exit handlers and flushes the output, but
    leaves the rest of the interpreter to the operating system."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
