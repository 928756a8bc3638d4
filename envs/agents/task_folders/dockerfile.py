"""Reads from a Dockerfile what a fresh working folder needs: WORKDIR, COPY, ADD, ENV and ARG of its
last stage.

Commands (RUN) are not run. Other instructions that need an image, such as COPY --from, are listed
in `needs`.
"""

import copy
import json
import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_REMOTE = re.compile(r"https?://|git@|.*\.(tar|tgz|tbz2|txz)(\.\w+)?$")
"""What ADD would download or unpack."""
_HEREDOC = re.compile(r"(?<!<)<<-?\s*[\"']?([A-Za-z_]\w*)")
_ESCAPE = re.compile(r"#\s*escape\s*=")
OPTIONS = frozenset(("--chown", "--chmod", "--link"))
"""Options of COPY and ADD that need no container. The owner is always this user."""


@dataclass(frozen=True)
class Copy:
    """A COPY or ADD. A target that ends in / is a folder. `mode`: the files' mode; None: their
    own."""

    sources: list[str]
    target: str
    mode: int | None = None


@dataclass
class Image:
    """What a Dockerfile says. `workdir`: the last working directory, "" if it names none.
    `arguments`: the defaults of its ARGs. `runs`: the number of commands. `needs`: instructions
    that only a container can follow."""

    workdir: str = ""
    copies: list[Copy] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    runs: int = 0
    needs: list[str] = field(default_factory=list)


def read_dockerfile(text: str) -> Image:
    """Reads a Dockerfile. What it cannot read joins `needs`."""
    first, stages = Image(), dict[str, Image]()
    image = first
    for line in _lines(text):
        word, rest = [*line.split(None, 1), ""][:2]
        try:
            if word.upper() == "FROM":
                image = _begin_stage(first, stages, rest)
            else:
                _follow(image, word.upper(), rest, first.arguments)
        except (ValueError, IndexError):
            image.needs.append(line)
    if any(_ESCAPE.match(line.strip()) for line in text.splitlines()[:3]):
        image.needs.append("# escape=")
    return image


def _begin_stage(first: Image, stages: dict[str, Image], rest: str) -> Image:
    """Begins a stage, from nothing or from an earlier stage. `first`: the image before the first
    stage."""
    words = [word for word in rest.split() if not word.startswith("--")]
    base = _fill_in(first, words[0])
    image = copy.deepcopy(stages[base]) if base in stages else Image()
    if len(words) > 2:
        stages[words[2]] = image
    return image


def _follow(image: Image, name: str, rest: str, outer: dict[str, str]) -> None:
    """Follows one instruction. `outer`: the ARGs before the first stage. Raises ValueError or
    IndexError if it cannot be read."""
    if name == "WORKDIR":
        image.workdir = str(
            PurePosixPath(image.workdir or "/") / _fill_in(image, rest.strip("\"'"))
        )
    elif name == "ENV":
        image.variables |= _pairs(image, rest)
    elif name == "ARG":
        for word in shlex.split(rest):
            key, given, value = word.partition("=")
            image.arguments[key] = _fill_in(image, value) if given else outer.get(key, "")
    elif name in ("COPY", "ADD"):
        image.copies.append(_read_copy(image, name, rest))
    elif name == "RUN":
        image.runs += 1


def _read_copy(image: Image, name: str, rest: str) -> Copy:
    """Reads a COPY or ADD. Raises ValueError or IndexError for one that needs a container."""
    options, words = _words(rest)
    sources, target = [_fill_in(image, word) for word in words[:-1]], _fill_in(image, words[-1])
    remote = name == "ADD" and any(_REMOTE.match(source) for source in sources)
    if not sources or remote or set(options) - OPTIONS or "<<" in rest:
        raise ValueError(rest)
    mode = int(_fill_in(image, options["--chmod"]), 8) if "--chmod" in options else None
    place = str(PurePosixPath(image.workdir or "/") / target)
    folder = target.endswith(("/", "/.")) or target == "." or len(sources) > 1
    return Copy(sources, place + "/" * folder, mode)


def _lines(text: str) -> list[str]:
    """Returns the instructions, with continued lines joined, without comments and heredocs."""
    lines, begun, rows = [], "", text.splitlines()
    at = 0
    while at < len(rows):
        line, at = rows[at], at + 1
        if line.lstrip().startswith("#") or (begun and not line.strip()):
            continue
        begun += line.strip()
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        if begun:
            lines.append(begun)
            at = _after_heredocs(begun, rows, at)
        begun = ""
    return lines + ([begun] if begun.strip() else [])


def _after_heredocs(line: str, rows: list[str], at: int) -> int:
    """Returns the number of the row after the heredocs of an instruction."""
    if line.split(None, 1)[0].upper() in ("RUN", "COPY", "ADD"):
        for mark in _HEREDOC.findall(line):
            ends = [n for n in range(at, len(rows)) if rows[n].strip() == mark]
            at = ends[0] + 1 if ends else at
    return at


def _words(rest: str) -> tuple[dict[str, str], list[str]]:
    """Returns an instruction's options and its words, which may be given as a JSON list."""
    options = dict[str, str]()
    while rest.startswith("--"):
        option, rest = [*rest.split(None, 1), ""][:2]
        name, _, value = option.partition("=")
        options[name] = value
    if not rest.startswith("["):
        return options, shlex.split(rest)
    listed = json.loads(rest)
    if not all(isinstance(word, str) for word in listed):
        raise ValueError(rest)
    return options, listed


def _pairs(image: Image, rest: str) -> dict[str, str]:
    """Returns the variables of an ENV: `NAME=VALUE …`, or the older `NAME VALUE`."""
    if "\\$" in rest:
        raise ValueError(rest)
    words = shlex.split(rest)
    if "=" not in words[0]:
        return {words[0]: _fill_in(image, rest.split(None, 1)[1].strip())}
    pairs = [word.partition("=") for word in words]
    return {name: _fill_in(image, value) for name, _, value in pairs}


def _fill_in(image: Image, text: str) -> str:
    """Puts in the values of the Dockerfile's variables, and this machine's PATH. Raises ValueError
    for another form of variable."""
    own = {"PATH": os.environ.get("PATH", os.defpath)}
    known = own | image.arguments | image.variables
    filled = _VARIABLE.sub(lambda found: known.get(found[1] or found[3], found[2] or ""), text)
    if "${" in filled:
        raise ValueError(text)
    return filled
