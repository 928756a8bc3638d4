"""What tests ask of a process, which may end between any two questions."""

import psutil


def lives(process: psutil.Process | int) -> bool:
    """Whether a process runs, or the one of a process id. One that has ended and whose exit code
    nobody has read does not."""
    try:
        found = psutil.Process(process) if isinstance(process, int) else process
        return found.is_running() and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> list[str]:
    """The name and the command line of a process; empty once it has ended."""
    try:
        return [process.name(), *process.cmdline()]
    except psutil.NoSuchProcess:
        return []
