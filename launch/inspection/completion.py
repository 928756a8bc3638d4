"""What a shell completes: names of presets, environments and settings. Loaded when a shell asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from r3l.settings.section import Section

HOW = """To complete words, add a line to your shell's start file:

    bash   ~/.bashrc                    eval "$(_R3L_LAUNCH_COMPLETE=bash_source r3l-launch)"
    zsh    ~/.zshrc                     eval "$(_R3L_LAUNCH_COMPLETE=zsh_source r3l-launch)"
    fish   ~/.config/fish/config.fish   _R3L_LAUNCH_COMPLETE=fish_source r3l-launch | source

r3l-buffer and the other commands complete in the same way: _R3L_BUFFER_COMPLETE, and so on."""


def presets(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Names of presets."""
    from launch.plan import PRESETS

    return _items(typed, sorted(path.stem for path in PRESETS.glob("*.yaml")))


def environments(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Names of environments, and the families before their colon."""
    from envs.registry import ENVIRONMENTS, FAMILIES

    return _items(typed, [*ENVIRONMENTS, *(f"{family}:" for family in FAMILIES)])


def settings(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Settings as KEY=, and after it their values if they have names; as the first word also the
    other commands."""
    from envs.registry import ENVIRONMENTS
    from launch.inspection.subcommands import COMMANDS
    from r3l.algorithms.registry import REGISTRY
    from r3l.config import RunConfig

    key, equals, _ = typed.partition("=")
    if not equals:
        commands = () if ctx.params.get("overrides") else COMMANDS
        keys = (f"{known}=" for known, _ in setting_fields(RunConfig))
        return _items(typed, [*commands, *dict.fromkeys(keys)])
    values = {"algorithm": list(REGISTRY), "env": list(ENVIRONMENTS)}.get(key, [])
    for known, annotation in setting_fields(RunConfig):
        if known == key:
            values += _named_values(annotation)
    return _items(typed, [f"{key}={value}" for value in dict.fromkeys(values)])


def setting_fields(section: type[Section], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(key, type) of every setting; a key comes once for each algorithm that has it."""
    from launch.config_docs import sections

    for name, field in section.model_fields.items():
        yield f"{prefix}{name}", field.annotation
        for inner in sections(field.annotation):
            if get_origin(field.annotation) is not tuple:
                yield from setting_fields(inner, f"{prefix}{name}.")


def _named_values(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in _named_values(part)]


def _items(typed: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(typed)]
