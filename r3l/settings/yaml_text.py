"""Reads and writes settings as YAML. Refuses aliases and repeated keys; reads 1e-5 as a number."""

import json
import re
from collections import Counter
from typing import Any

import yaml

from r3l.errors import UserError


class _Loader(yaml.SafeLoader):
    """Loads YAML. Refuses repeated keys, because a value would be lost. Refuses aliases, because a
    few lines could fill the memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                f"*{event.anchor} is an alias; write the value itself", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, times in keys.most_common(1):
            if times > 1:
                raise yaml.MarkedYAMLError(f"{key} appears twice in one section", node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes YAML that `_Loader` can read: quotes text such as 1e-5, and writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
for _yaml in (_Loader, _Dumper):
    _yaml.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, [*"-+0123456789"])
# A library of vLLM's makes SafeLoader leave dates as text, in the whole process; _Loader must not.
_DATE = "tag:yaml.org,2002:timestamp"
_Loader.add_constructor(_DATE, yaml.SafeLoader.construct_yaml_timestamp)  # type: ignore[type-var]


def parse(text: str, what: str) -> Any:
    """Parses YAML. If it is invalid, raises a UserError that names `what`."""
    try:
        value = yaml.load(text, _Loader)
        # Raises for a number that cannot be shown, and for half a surrogate pair.
        json.dumps(value, default=str, skipkeys=True, ensure_ascii=False).encode()
        return value
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no such date, or too deep
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
