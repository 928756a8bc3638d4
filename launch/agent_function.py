"""Turns `r3l.train(agent=play, tasks=…, reward=…)` into settings of the environment `agent`."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from envs.agents.call_function import MODULE
from r3l.errors import UserError
from r3l.files.whole_file import write_whole

Agent = Callable[..., Any] | str
"""A function at the top level of a file, or the text of the option `command` or `reward`."""
Tasks = Sequence[Mapping[str, Any]] | Path | str
TASKS = "tasks.jsonl"
"""Name of the file in the run's folder that stores a list of tasks."""


def agent_settings(agent: Agent, tasks: Tasks, reward: Agent | None, run: Path) -> dict[str, Any]:
    """Returns settings that train `agent`. Writes a list of tasks to a file in the run's folder.

    Raises UserError if actors cannot import a function, if the run's folder already lists different
    tasks, or if r3l.train is called while an actor imports the user's file.
    """
    if MODULE in sys.modules:
        raise UserError(
            'put r3l.train under `if __name__ == "__main__":`, so that actors can import your file'
        )
    options = {"command": _named("agent", agent)}
    if reward is not None:
        options["reward"] = _named("reward", reward)
    if not isinstance(tasks, str | Path):
        text = "".join(f"{json.dumps(task)}\n" for task in tasks)
        tasks = (run / TASKS).resolve()
        _write_tasks(tasks, text)
    return {"env.name": "agent", "env.options": options | {"tasks": str(tasks)}}


@contextmanager
def removed_if_refused(file: Path) -> Iterator[None]:
    """If the block raises, removes `file` and its folders, unless they existed before the block."""
    new = [place for place in (file, *file.parents) if not place.exists()]
    try:
        yield
    except BaseException:
        for place in new:
            with suppress(OSError):  # a folder with other files stays
                place.unlink() if place == file else place.rmdir()
        raise


def _write_tasks(file: Path, text: str) -> None:
    try:
        if file.exists():
            if file.read_text(encoding="utf-8") != text:
                raise UserError(
                    f"tasks: the given tasks differ from this run's tasks (stored in {file}); use "
                    "the run's own tasks, or a new run name"
                )
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)
    except OSError as error:
        raise UserError(f"tasks: {file} cannot be written ({error.strerror})") from None


def _named(what: str, function: Agent) -> str:
    """Returns the name by which actors import a function: `file.py:function`. If given such
    a name, returns it unchanged."""
    if isinstance(function, str):
        return function
    name = getattr(function, "__name__", repr(function))
    module = sys.modules.get(getattr(function, "__module__", ""))
    if getattr(module, name, None) is not function:
        raise UserError(f"{what} {name}: must be a function at the top level of a file")
    file = getattr(module, "__file__", None)
    if file is None:
        raise UserError(
            f"{what} {name}: is defined in a notebook or at a prompt, where actors cannot import "
            "it; write it to a file (%%writefile my_agent.py) and import it from there"
        )
    return f"{Path(file).resolve()}:{name}"
