"""Prints docs/configuration.md from the settings' own descriptions, for `make docs`."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from r3l.run.config import RunConfig
from r3l.settings.section import Section

SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
WORDS = {int: "integer", float: "number", str: "text", bool: "true or false", dict: "mapping"}
HEAD = """# Configuration

Every setting of a run. `make docs` writes this page from `r3l/run/config.py`,
`r3l/run/settings/` and `r3l/algorithms/`.
A value comes from the first of these that has it:

1. a `KEY=VALUE` argument of a command;
2. a shortcut of `r3l-launch`: `--env` (`env`), `--model` (`model`), `--steps` (`learner.steps`),
   `--seed` (`seed`), `--actor-gpus` (`actor.engine.tensor_parallel_size`);
3. the YAML file that `--config` names, the one of `launch/presets/` that `--preset` names, or for
   `r3l-launch --resume` the run's own `config.yaml`;
4. `launch/presets/demo.yaml`, the settings of the demo, if the model is `builtin` (which it is if
   nothing names one), without `--resume`;
5. the default below.

The file may be another run's `config.yaml`. Another `algorithm` than the file's keeps those of its
settings that are not its defaults and that both have; another `env` keeps all but `env.options`
and `env.others`; one of the others keeps its options. An unknown key is refused, and the error
lists the known ones. `--print-config` prints the result and starts nothing.

Files and arguments are YAML 1.2: `010` is 10, `0x1F` is 31, and `1:30`, `2024-02-29`, `no` and `on`
are text. Only `true` and `false` are truths.

    r3l-launch --config my.yaml algorithm=grpo learner.lr=1e-5
    r3l-launch --config runs/first/config.yaml algorithm=grpo --run baseline --print-config
    r3l-launch --preset paper-alfworld --model ~/models/Qwen2.5-1.5B-Instruct --check

`--check` says in one line what is missing or wrong, such as a package or the data, and starts
nothing.
"""


def page() -> str:
    """The text of docs/configuration.md."""
    return HEAD + "".join(_tables("Top level", RunConfig, ""))


def _tables(title: str, section: type[Section], prefix: str) -> Iterator[str]:
    """The table of a section's fields, then those of the sections inside it."""
    yield f"\n## {title}\n\n{_summary(section)}\n\n"
    yield "| key | type | default | meaning |\n|---|---|---|---|\n"
    for name, field in section.model_fields.items():
        if field.description:
            yield _row(f"{prefix}{name}", field)
    for name, field in section.model_fields.items():
        key, inner = f"{prefix}{name}", list(sections(field.annotation))
        for each in inner:
            if get_origin(field.annotation) is tuple:
                yield from _tables(f"One entry of `{key}`", each, "")
            else:
                variant = f": {each.model_fields['name'].default}" if len(inner) > 1 else ""
                yield from _tables(f"`{key}{variant}`", each, f"{key}.")


def sections(annotation: Any) -> Iterator[type[Section]]:
    """The sections that a field holds: itself one, a choice of several, or a list of one."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from sections(part)


def _row(key: str, field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True, validated_data={})
    shown = "required" if default is PydanticUndefined else f"`{_value(default)}`"
    kind = _type(field.annotation, field.metadata)
    if default is not None:  # then only null leaves it unset
        kind = kind.replace(" or unset", " or null")
    cells = (f"`{key}`", kind, shown, field.description or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _type(annotation: Any, metadata: list[Any]) -> str:
    """A type and its limits in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0], [*metadata, *_constraints(parts[1:])])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in parts)
    if origin in (Union, UnionType):
        words = ["unset" if part is NoneType else _type(part, metadata) for part in parts]
        return " or ".join(words)
    if origin is tuple:
        count = "" if Ellipsis in parts else f"{len(parts)} "
        return f"list of {count}{_type(parts[0], [])}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "entries"
    limits = [
        f"{sign} {_value(getattr(each, name))}"
        for each in metadata
        for name, sign in SIGNS.items()
        if hasattr(each, name)
    ]
    return " ".join([WORDS[origin or annotation], ", ".join(limits)]).strip()


def _constraints(metadata: tuple[Any, ...]) -> Iterator[Any]:
    for each in metadata:
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def _value(value: Any) -> str:
    """A value as YAML on one line."""
    if isinstance(value, Section):
        value = value.model_dump(exclude_defaults=True)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "unset", True: "true", False: "false"}[value]
    return f"{value:.10g}" if isinstance(value, int | float) else str(value)


def _summary(section: type[Section]) -> str:
    """The first paragraph of a section's docstring."""
    return " ".join((section.__doc__ or "").split("\n\n")[0].split())


if __name__ == "__main__":
    print(page(), end="")
