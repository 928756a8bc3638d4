"""Decides whether a text is JSON that fits a JSON schema, without a grammar.

Says yes only if it is sure: nothing fits a schema with a keyword that is not listed here, such as
`pattern` or `format`. So the check is cheap, whatever an agent writes into its schema.
"""

import json
from collections.abc import Callable
from typing import Any

MOST_CHECKS = 20_000
"""The most schemas and names that are compared with values of one text."""
SPOKEN = frozenset(
    "title description default examples deprecated readOnly writeOnly $schema $comment $defs "
    "definitions".split()
)
"""Keywords that say nothing about the values."""
TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
}
LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", lambda value, limit: value >= limit),
    "maximum": ("number", lambda value, limit: value <= limit),
    "exclusiveMinimum": ("number", lambda value, limit: value > limit),
    "exclusiveMaximum": ("number", lambda value, limit: value < limit),
    "minLength": ("string", lambda value, limit: len(value) >= limit),
    "maxLength": ("string", lambda value, limit: len(value) <= limit),
    "minItems": ("array", lambda value, limit: len(value) >= limit),
    "maxItems": ("array", lambda value, limit: len(value) <= limit),
    "minProperties": ("object", lambda value, limit: len(value) >= limit),
    "maxProperties": ("object", lambda value, limit: len(value) <= limit),
}
"""Keywords with a number as their limit, and the type of the values that they limit."""


class Undecided(Exception):
    """This module cannot decide whether a value fits."""


def fits(text: str, schema: Any) -> bool:
    """Whether a text is one JSON value that surely fits a schema."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # no half surrogate pair
        return _Check(schema).holds(schema, value)
    except (ValueError, RecursionError, Undecided):
        return False


def judged(value: Any, schema: Any, root: Any) -> bool | None:
    """Whether a value fits a schema inside `root`. Ignores keywords that are not listed here.
    Returns None if the answer is not sure."""
    try:
        return _Check(root, lenient=True).holds(schema, value)
    except Undecided:
        return None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class _Check:
    """Compares values with the schemas inside `root`. `lenient`: any value fits a keyword that is
    not listed here. Raises Undecided."""

    def __init__(self, root: Any, *, lenient: bool = False) -> None:
        self.root, self.left, self.lenient = root, MOST_CHECKS, lenient

    def holds(self, schema: Any, value: Any) -> bool:
        self._spend(1)
        if isinstance(schema, bool):
            return schema
        return all(self._keyword(schema, name, value) for name in _named(schema))

    def _spend(self, checks: int) -> None:
        self.left -= checks
        if self.left < 0:
            raise Undecided

    def _keyword(self, schema: dict[str, Any], name: str, value: Any) -> bool:
        own = schema[name]
        if name in SPOKEN:
            return True
        if name in LIMITS:
            kind, within = LIMITS[name]
            if isinstance(own, bool) or not isinstance(own, int | float):
                raise Undecided
            return not TYPES[kind](value) or within(value, own)
        if name not in _KEYWORDS:
            if self.lenient:
                return True
            raise Undecided
        return bool(getattr(self, f"_{name.removeprefix('$')}")(schema, own, value))

    def _type(self, _: Any, own: Any, value: Any) -> bool:
        kinds = own if isinstance(own, list) else [own]
        if not kinds or any(not isinstance(kind, str) or kind not in TYPES for kind in kinds):
            raise Undecided
        if any(TYPES[kind](value) for kind in kinds):
            return True
        if "integer" in kinds and isinstance(value, float) and value.is_integer():
            raise Undecided  # some readers take 1.0 for an integer
        return False

    def _enum(self, _: Any, own: Any, value: Any) -> bool:
        self._spend(len(_listed(own)))
        return any(_same(each, value) for each in own)

    def _const(self, _: Any, own: Any, value: Any) -> bool:
        return _same(own, value)

    def _ref(self, _: Any, own: Any, value: Any) -> bool:
        return self.holds(target_of(own, self.root), value)

    def _anyOf(self, _: Any, own: Any, value: Any) -> bool:
        unsure = False
        for each in _listed(own):
            try:
                if self.holds(each, value):
                    return True
            except Undecided:
                unsure = True
        if unsure:
            raise Undecided
        return False

    def _oneOf(self, _: Any, own: Any, value: Any) -> bool:
        return sum(self.holds(each, value) for each in _listed(own)) == 1

    def _allOf(self, _: Any, own: Any, value: Any) -> bool:
        return all(self.holds(each, value) for each in _listed(own))

    def _properties(self, _: Any, own: Any, value: Any) -> bool:
        self._spend(len(_named(own)))
        shared = [name for name in own if isinstance(value, dict) and name in value]
        return all(self.holds(own[name], value[name]) for name in shared)

    def _required(self, _: Any, own: Any, value: Any) -> bool:
        if not isinstance(own, list) or not all(isinstance(name, str) for name in own):
            raise Undecided
        self._spend(len(own))
        return not isinstance(value, dict) or all(name in value for name in own)

    def _additionalProperties(self, schema: Any, own: Any, value: Any) -> bool:
        if "patternProperties" in schema:
            raise Undecided
        known = _named(schema.get("properties", {}))
        others = [name for name in value if name not in known] if isinstance(value, dict) else []
        return all(self.holds(own, value[name]) for name in others)

    def _items(self, schema: Any, own: Any, value: Any) -> bool:
        if "prefixItems" in schema:
            raise Undecided
        return not isinstance(value, list) or all(self.holds(own, each) for each in value)


_KEYWORDS = frozenset(
    "type enum const $ref anyOf oneOf allOf properties required additionalProperties items".split()
)


def target_of(ref: Any, root: Any) -> Any:
    """Returns the schema inside `root` that a `$ref` names by its path. Raises Undecided for any
    other reference, such as an anchor, an escaped path or another file."""
    if not isinstance(ref, str) or "%" in ref or not (ref == "#" or ref.startswith("#/")):
        raise Undecided
    target = root
    for part in ref.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if name not in _named(target):
            raise Undecided
        target = target[name]
    return target


def _listed(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise Undecided
    return value


def _named(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Undecided
    return value


def _same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; 1.0 is 1, and true is not 1."""
    if TYPES["number"](one) and TYPES["number"](other):
        return bool(one == other)
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _same(own, other[name]) for name, own in one.items()
        )
    return bool(one == other)
