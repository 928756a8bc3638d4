"""Reads and writes settings as YAML 1.2 (core schema). Refuses aliases, merges and repeated keys.

010 is 10, 0x1F is 31, 0o17 is 15, 1e-5 is a number; 1:30, no, on and 2024-02-29 are text
"""

import json
import math
import re
from typing import Any

import yaml

from r3l.errors import UserError

_NULL, _BOOL, _INT, _FLOAT, _TEXT, _LIST, _MAPPING = (
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")
)
_CORE = {
    _NULL: r"null|Null|NULL|~|",
    _BOOL: r"true|True|TRUE|false|False|FALSE",
    _INT: r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    _FLOAT: r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)"
    r"|\.(nan|NaN|NAN)",
}
"""Patterns of values without quotes that are not text, by tag. The first one that fits counts."""
_RESOLVERS = [(tag, re.compile(f"(?:{pattern})$")) for tag, pattern in _CORE.items()]
_BASES = {"0x": 16, "0o": 8}


class _Loader(yaml.SafeLoader):
    """Loads YAML 1.2. Refuses repeated keys, because a value would be lost. Refuses aliases,
    because a few lines could fill the memory."""

    # Another library may change those of SafeLoader, in the whole process.
    yaml_implicit_resolvers = {None: _RESOLVERS}  # noqa: RUF012
    yaml_constructors = {}  # noqa: RUF012

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                f"*{event.anchor} is an alias; write the value itself", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.MarkedYAMLError("a key must be one word", key_node.start_mark)
            key = self.construct_object(key_node)
            if key == "<<" and key_node.style is None:
                raise yaml.MarkedYAMLError(
                    "<< is not read; write the settings themselves", key_node.start_mark
                )
            if key in made:
                raise yaml.MarkedYAMLError(
                    f"{key_node.value} appears twice in one section", node.start_mark
                )
            made[key] = self.construct_object(value_node, deep=deep)
        return made

    def nothing(self, node: yaml.ScalarNode) -> None:
        self._core_text(node, _NULL)

    def whole_number(self, node: yaml.ScalarNode) -> int:
        text = self._core_text(node, _INT)
        return int(text[2:], _BASES[text[:2]]) if text[:2] in _BASES else int(text)

    def number(self, node: yaml.ScalarNode) -> float:
        text = self._core_text(node, _FLOAT).lower()
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        if math.isinf(value) and "inf" not in text:
            raise yaml.MarkedYAMLError(f"{text:.40} is too large a number", node.start_mark)
        return value

    def truth(self, node: yaml.ScalarNode) -> bool:
        return self._core_text(node, _BOOL).lower() == "true"

    def _core_text(self, node: yaml.ScalarNode, tag: str) -> str:
        """Returns a scalar's text. Raises an error if its tag does not fit, as in `!!bool yes`."""
        text = str(self.construct_scalar(node))
        if not re.fullmatch(_CORE[tag], text):
            name = tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                f"{text!r:.40} is not a valid {name} in YAML 1.2; remove the tag !!{name}",
                node.start_mark,
            )
        return text

    def unknown(self, node: yaml.Node) -> Any:
        raise yaml.MarkedYAMLError(f"the tag {node.tag} is not known", node.start_mark)


_Loader.yaml_constructors = {
    _NULL: _Loader.nothing,
    _BOOL: _Loader.truth,
    _INT: _Loader.whole_number,
    _FLOAT: _Loader.number,
    _TEXT: yaml.SafeLoader.construct_yaml_str,
    _LIST: yaml.SafeLoader.construct_yaml_seq,
    _MAPPING: yaml.SafeLoader.construct_yaml_map,
    None: _Loader.unknown,
}


class _Dumper(yaml.SafeDumper):
    """Writes YAML that `_Loader` can read: quotes text such as 1e-5, and writes no aliases. Also
    quotes what only YAML 1.1 takes for a number, for other programs."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern in _RESOLVERS:
    _Dumper.add_implicit_resolver(_tag, _pattern, ["~", "", *"-+.0123456789nNtTfF"])


def parse(text: str, what: str) -> Any:
    """Parses YAML. If it is invalid, raises a UserError that names `what`."""
    try:
        value = yaml.load(text, _Loader)
        # Raises for a number that cannot be shown, and for half a surrogate pair.
        json.dumps(value, skipkeys=True, ensure_ascii=False).encode()
        return value
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no such number, or too deep
        reason = " ".join(_reason(error).split())[:200]
        raise UserError(f"{what}: not valid YAML ({reason})") from None


def _reason(error: Exception) -> str:
    """Says what is wrong, and in which line and column."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if mark is None and isinstance(error, yaml.MarkedYAMLError):
        problem, mark = error.context, error.context_mark  # of the errors raised here
    if not problem or mark is None:
        return str(error)
    problem = problem.replace("'<stream end>'", "the end").replace("'<block end>'", "the end")
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def write(value: Any) -> str:
    """Writes YAML that `parse` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)
