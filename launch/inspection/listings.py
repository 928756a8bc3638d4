"""What can be chosen: presets, environments and algorithms, one a line with what it is."""

from __future__ import annotations

import ast
import itertools
import platform
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata, resources
from typing import Any

import click

from launch.inspection.completion import HOW

WIDTH = 100


def preset_lines() -> Iterator[tuple[str, str]]:
    """(name, the comment at the head of its file) of every preset."""
    from launch.plan import PRESETS

    for path in sorted(PRESETS.glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        head = itertools.takewhile(lambda line: line.startswith("#"), lines)
        yield path.stem, " ".join(line.removeprefix("#").strip() for line in head)


def environment_lines() -> Iterator[tuple[str, str]]:
    """(name, what it is) of every environment; nothing of it is imported, since that may need
    packages that are not installed."""
    from envs.registry import ENVIRONMENTS, FAMILIES

    named = ENVIRONMENTS | {f"{family}:NAME": target for family, target in FAMILIES.items()}
    shared = Counter(target.partition(":")[0] for target in named.values())
    for name, target in named.items():
        module, _, kind = target.partition(":")
        yield name, _docstring(module, kind if shared[module] > 1 else None)
    yield "file.py:Class", "your own class: docs/environments/README.md"


def algorithm_lines() -> Iterator[tuple[str, str]]:
    """(name, what it is) of every algorithm."""
    from r3l.algorithms.registry import REGISTRY

    for name, kind in REGISTRY.items():
        yield name, _first_sentence(sys.modules[kind.__module__].__doc__)


def version() -> str:
    """The versions of r3l and of Python."""
    return f"r3l {metadata.version('r3l')}, Python {platform.python_version()}"


def _table(lines: Iterable[tuple[str, str]]) -> str:
    formatter = click.HelpFormatter(width=WIDTH)
    formatter.write_dl(list(lines), col_max=24)
    return textwrap.dedent(formatter.getvalue()).rstrip()


def listing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --list-presets, --list-envs, --list-algorithms, --completion and --version: each prints
    and ends."""
    texts: dict[str, tuple[str, Callable[[], str]]] = {
        "--list-presets": ("print the presets and exit", lambda: _table(preset_lines())),
        "--list-envs": ("print the environments and exit", lambda: _table(environment_lines())),
        "--list-algorithms": ("print the algorithms and exit", lambda: _table(algorithm_lines())),
        "--completion": ("print how a shell completes words, and exit", lambda: HOW),
        "--version": ("print the version and exit", version),
    }
    for option, (help_text, text) in reversed(texts.items()):
        command = click.option(
            option, is_flag=True, expose_value=False, is_eager=True, help=help_text,
            callback=_printer(text),
        )(command)  # fmt: skip
    return command


def _printer(text: Callable[[], str]) -> Callable[[click.Context, click.Parameter, bool], None]:
    def show(ctx: click.Context, param: click.Parameter, given: bool) -> None:
        if given and not ctx.resilient_parsing:
            click.echo(text())
            ctx.exit()

    return show


def _docstring(module: str, kind: str | None) -> str:
    """The first sentence of the docstring of a module, or of a class in it, read without importing
    it."""
    package, _, stem = module.rpartition(".")
    source = resources.files(package).joinpath(f"{stem}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    found: ast.Module | ast.ClassDef = tree
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == kind:
            found = node
    return _first_sentence(ast.get_docstring(found))


def _first_sentence(text: str | None) -> str:
    """The first sentence of a docstring on one line; "et al. 2021" is not its end."""
    paragraph = " ".join((text or "").partition("\n\n")[0].split())
    return re.split(r"\.(?= [A-Z`]|$)|:$", paragraph)[0]
