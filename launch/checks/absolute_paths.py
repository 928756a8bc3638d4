"""Makes the paths in a run's settings absolute, so that a resume from another folder reads the same
files. A text counts as a path if it exists here, and if its form or its setting marks it as a
path."""

import os
import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from r3l.run.config import RunConfig, parse

COMMANDS = ("command", "snapshot", "restore", "mcp")
"""Options of an agent that are command lines."""
_PLACE = re.compile(r"(.*_)?(workspace|tasks|data|checkout|cache|root|folder|dir|path|file)s?")
"""Names of options that may be a folder's name without a slash."""
_CLASS = re.compile(r"(.+\.py)(:\w+)")

Change = Callable[[str], str]


def absolute(config: RunConfig, known: RunConfig | None = None) -> RunConfig:
    """Returns the settings with absolute paths. `known`: the settings of the run to resume. Texts
    that also occur in `known` stay as they are."""
    kept = set() if known is None else set(_texts(known.model_dump(mode="json")))
    tree = config.model_dump(mode="json")
    path, command = (_unless(kept, change) for change in (path_text, command_text))
    env = tree["env"]
    env["options"] = _options(env["name"], env["options"], path, command, kept)
    env["others"] = {
        path(name): _options(name, options, path, command, kept)
        for name, options in env["others"].items()
    }
    for section in (
        env,
        tree["algorithm"],
        tree["buffer"]["sampler"],
        tree["buffer"]["task_sampler"],
    ):
        section["name"] = path(section["name"])
    for section, key, change in (
        (tree["learner"], "on_checkpoint", command),
        (tree["learner"], "deepspeed", path),
        (tree["actor"], "engine", path),
    ):
        section[key] = _changed(section[key], change)
    archive = tree["buffer"]["archive"]
    if archive and "://" not in archive:
        tree["buffer"]["archive"] = os.path.abspath(os.path.expanduser(archive))
    return config if tree == config.model_dump(mode="json") else parse(RunConfig, tree)


def path_text(text: str, *, place: bool = False) -> str:
    """Makes `text` absolute if it is the relative path of something that exists, or FILE.py:NAME
    with such a file. Text without a slash counts as a path only if it names a file with an
    extension. With `place`, it may name any file or folder."""
    if found := _CLASS.fullmatch(text):
        return os.path.abspath(found[1]) + found[2] if _exists(found[1]) else text
    plain = place or "/" in text or ("." in text.strip(".") and os.path.isfile(text))
    return os.path.abspath(text) if plain and _exists(text) else text


def command_text(text: str) -> str:
    """Makes the paths in a command line absolute, including the program's own path."""
    if _CLASS.fullmatch(text) and _exists(text.rpartition(":")[0]):
        return path_text(text)
    try:
        words = shlex.split(text)
    except ValueError:
        return text  # other checks name the fault
    module = 2 if words[1:2] == ["-m"] else -1
    found = [
        path_text(word, place=0 < n != module) if n != module else word
        for n, word in enumerate(words)
    ]
    if words and "/" not in words[0]:
        found[0] = words[0]  # a program of PATH
    return text if found == words else shlex.join(found)


def _options(
    name: str, options: Mapping[str, Any], path: Change, command: Change, kept: set[str]
) -> dict[str, Any]:
    """Returns the options of the environment `name` with absolute paths."""
    place = _unless(kept, partial(path_text, place=True))
    made = {}
    for option, value in options.items():
        change = place if _PLACE.fullmatch(option) else path
        made[option] = _changed(value, command if _is_command(name, option) else change)
    return made


def _is_command(name: str, option: str) -> bool:
    return name == "agent" and option in COMMANDS


def _exists(text: str) -> bool:
    """Whether a text is a relative path to something that exists."""
    try:
        return bool(text) and not os.path.isabs(text) and text[0] != "~" and os.path.exists(text)
    except ValueError:  # it holds a NUL
        return False


def _unless(kept: set[str], change: Change) -> Change:
    return lambda text: text if text in kept else change(text)


def _changed(value: Any, change: Change) -> Any:
    """Applies `change` to every text in a plain value, but not to keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _changed(each, change) for key, each in value.items()}
    return [_changed(each, change) for each in value] if isinstance(value, list) else value


def _texts(value: Any) -> list[str]:
    """Returns every text in a plain value, including the keys."""
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in _texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    return [value] if isinstance(value, str) else []
