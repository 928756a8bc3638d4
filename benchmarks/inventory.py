"""Writes docs/inventory.txt, the list of every name that a user can meet, for `make docs`.

A line is a kind and a name. A name that is in the file, but no longer in the code, needs a line in
docs/removed.txt, else nothing is written:

    removed: KIND NAME, why, who loses what
"""

import ast
import configparser
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin

import click

from benchmarks.configuration_page import sections
from buffer.sampling.samplers import SAMPLERS
from buffer.sampling.task_samplers import TASK_SAMPLERS
from envs.registry import ENVIRONMENTS, FAMILIES
from launch.backends.registry import BACKENDS
from launch.cli import INSPECTIONS
from learner.evaluation.metrics import METRICS as EVALUATION_METRICS
from learner.metrics.loggers.registry import LOGGERS
from learner.metrics.tags import METRICS
from r3l.algorithms.registry import REGISTRY as ALGORITHMS
from r3l.errors import UserError
from r3l.run.config import RunConfig
from r3l.settings.section import Section

ROOT = Path(__file__).parents[1]
INVENTORY, REMOVED = ROOT / "docs" / "inventory.txt", ROOT / "docs" / "removed.txt"
PRESETS = ROOT / "launch" / "presets"
PACKAGES = ("r3l", "buffer", "envs")
"""The packages whose `__all__` is public."""
MODULES: tuple[str, ...] = ()
"""What pages tell a user to start with `python -m`."""
UNLISTED = {"r3l-launch": INSPECTIONS}
"""Subcommands that a group of commands finds, but does not list."""
DOCTOR = {
    ROOT / "launch" / "inspection" / "doctor.py": ("_problem", "_hint"),
    ROOT / "launch" / "inspection" / "learning.py": ("Reason",),
    ROOT / "launch" / "inspection" / "retry_reliance.py": ("Reason",),
}
"""The files of the doctor's messages, and the functions whose first argument is a message."""
HEAD = "# Every name that a user can meet, written by `make docs` (benchmarks/inventory.py).\n"
MARK = "removed: "


def names() -> set[str]:
    """Returns all names of the code, each as `KIND NAME`."""
    kinds: dict[str, Iterable[str]] = {
        "algorithm": ALGORITHMS,
        "backend": BACKENDS,
        "evaluation-metric": (metric.name for metric in EVALUATION_METRICS),
        "logger": LOGGERS,
        "message": _messages(),
        "metric": (metric.tag for metric in METRICS),
        "preset": (path.stem for path in PRESETS.glob("*.yaml")),
        "python": (f"{each}.{name}" for each in PACKAGES for name in import_module(each).__all__),
        "sampler": SAMPLERS,
        "task-sampler": TASK_SAMPLERS,
        "world": [*ENVIRONMENTS, *(f"{family}:<member>" for family in FAMILIES)],
        "world-option": _world_options(),
    }
    found = {f"{kind} {name}" for kind, each in kinds.items() for name in each}
    return found | set(_settings(RunConfig, "", "")) | set(_all_commands())


def _settings(section: type[Section], prefix: str, variant: str) -> Iterator[str]:
    """The settings of a section and of those inside it, and the values of those with few.
    `variant`: which of several sections for one key it is."""
    for name, field in section.model_fields.items():
        key, inner = f"{prefix}{name}", list(sections(field.annotation))
        if not inner:
            yield f"setting {key}{variant}"
            yield from (f"value {key}={value}{variant}" for value in _choices(field.annotation))
        entries = "[]" if get_origin(field.annotation) is tuple else ""
        for each in inner:
            of = f" ({each.model_fields['name'].default})" if len(inner) > 1 else variant
            yield from _settings(each, f"{key}{entries}.", of)


def _choices(annotation: Any) -> list[Any]:
    """The values of an annotation that lists two or more."""
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        return list(values) if len(values) > 1 else []
    return [value for part in get_args(annotation) for value in _choices(part)]


def _world_options() -> Iterator[str]:
    for name, target in (ENVIRONMENTS | FAMILIES).items():
        for option in inspect.signature(resolve_name(target)).parameters.values():
            if option.kind is option.KEYWORD_ONLY:
                yield f"{name} {option.name}"


def _all_commands() -> Iterator[str]:
    for module in MODULES:
        if (ROOT / module.replace(".", "/")).with_suffix(".py").is_file():
            yield f"command python -m {module}"
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    for line in setup["options.entry_points"]["console_scripts"].split("\n"):
        if line.strip():
            name, _, target = map(str.strip, line.partition("="))
            yield from _commands(name, resolve_name(target))


def _commands(name: str, command: Callable[..., Any]) -> Iterator[str]:
    """A command, its options with their values, its arguments, and its subcommands."""
    yield f"command {name}"
    for each in command.params if isinstance(command, click.Command) else ():
        if isinstance(each, click.Argument):
            yield f"argument {name} {each.human_readable_name}"
            continue
        yield from (f"option {name} {option}" for option in (*each.opts, *each.secondary_opts))
        if isinstance(each.type, click.Choice):
            yield from (f"value {name} {each.opts[0]}={value}" for value in each.type.choices)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in (*command.list_commands(context), *UNLISTED.get(name, ())):
            found = command.get_command(context, inner)
            assert found is not None, f"{name} lists {inner}, but does not have it"
            yield from _commands(f"{name} {inner}", found)


def _messages() -> Iterator[str]:
    """The doctor's messages as the source has them, with … for what a run fills in."""
    for path, makers in DOCTOR.items():
        for function in ast.parse(path.read_text("utf-8")).body:
            nodes = list(ast.walk(function))
            said = {
                ast.unparse(node.targets[0]): node.value
                for node in nodes
                if isinstance(node, ast.Assign)
            }
            for node in nodes:
                if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in makers:
                    text = _constant(said.get(ast.unparse(node.args[0]), node.args[0]))
                    yield from [text] if text.strip("… ") else []


def _constant(node: ast.expr) -> str:
    """A text of the source, with … for each part that is not constant."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_constant, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "…"


def listed(text: str) -> list[str]:
    """The lines of docs/inventory.txt or docs/removed.txt that are no comment."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def page(found: set[str]) -> str:
    """The text of docs/inventory.txt."""
    return HEAD + "".join(f"{name}\n" for name in sorted(found))


def faults_of(removed: Iterable[str], found: set[str]) -> list[str]:
    """The lines of docs/removed.txt without a name, a reason and who loses what, and those whose
    name the code has."""
    kinds = {name.partition(" ")[0] for name in found}

    def right(line: str) -> bool:
        rest = line.removeprefix(MARK)
        known = rest.partition(" ")[0] in kinds and len(list(filter(None, rest.split(", ")))) > 2
        return known and rest != line and not any(rest.startswith(f"{each}, ") for each in found)

    return [line for line in removed if not right(line)]


def check_none_vanishes(written: list[str], found: set[str], removed: Iterable[str]) -> None:
    """Raises UserError for a name of the file that neither the code nor a line of docs/removed.txt
    has."""
    lines = list(removed)
    told = {name for name in written if any(each.startswith(f"{MARK}{name}, ") for each in lines)}
    if gone := sorted(set(written) - found - told):
        more = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
        raise UserError(
            f"{gone[0]}: is in docs/inventory.txt, but not in the code{more}; bring it back, or "
            f"add to docs/removed.txt the line `{MARK}{gone[0]}, why, who loses what`"
        )


def main(inventory: Path = INVENTORY, removed: Path = REMOVED) -> int:
    """Writes the file; returns the exit code, 2 if a name would vanish."""
    found = names()
    try:
        written, gone = (listed(path.read_text("utf-8")) for path in (inventory, removed))
        check_none_vanishes(written, found, gone)
    except UserError as error:
        print(f"inventory: {error}", file=sys.stderr)
        return 2
    inventory.write_text(page(found), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
