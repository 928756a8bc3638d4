"""Makes up a value that fits a JSON schema.

    schema ─► one schema without $ref and allOf ─► candidates ─► the first that fits

Ignores keywords that neither this module nor actors.grammars.schema_fit knows.
"""

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from actors.grammars.schema_fit import LIMITS, Undecided, judged, target_of

MOST_STEPS = 10_000
"""The most schemas that are looked at for one value."""
MOST_ITEMS, LONGEST_TEXT = 1000, 10_000
FORMATS = {
    "date-time": "2026-01-31T12:00:00Z",
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "duration": "P1D",
    "email": "name@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
}
SAMPLES = (
    "text", "a", "A", "ab", "AB", "abc", "ABC", "TEXT", "Text", "1", "01", "123", "1234", "12345",
    "1.0", "1.0.0", "a1", "A1", "ABC-123", "ABC123", "text-1", "text_1", "a b", "a.txt", "/a",
    "12:00", "#00ff00", "+15550100", "A: a", "", *FORMATS.values(),
)  # fmt: skip
"""Texts that are tried for a pattern."""


class NoExample(Exception):
    """No value can be made up for a schema. The message names the part that prevents it."""


def example(schema: Any) -> Any:
    """Makes up a value that fits a JSON schema. Raises NoExample."""
    try:
        return _Maker(schema).made(schema, frozenset())
    except RecursionError:
        raise NoExample("it is nested too deeply") from None
    except (TypeError, ValueError, AttributeError, OverflowError):  # no schema, such as a list
        raise NoExample("it is not a JSON schema") from None


class _Maker:
    """Makes values for the schemas inside `root`. `open_`: the references that a value is inside
    of, so that a schema which contains itself has an end."""

    def __init__(self, root: Any) -> None:
        self.root, self.left = root, MOST_STEPS

    def made(self, schema: Any, open_: frozenset[str]) -> Any:
        unsure: list[Any] = []
        for value in self.candidates(schema, open_):
            if fits := judged(value, schema, self.root):
                return value
            if fits is None:
                unsure.append(value)
        if unsure:
            return unsure[0]
        raise NoExample(f"no value is made up for {schema!r:.100}")

    def candidates(self, schema: Any, open_: frozenset[str]) -> Iterator[Any]:
        flat, open_ = self._flat(schema, open_)
        options = flat.pop("anyOf", None) or flat.pop("oneOf", None)
        if "const" in flat:
            yield flat["const"]
        elif "enum" in flat:
            yield from flat["enum"]
        elif options:
            yield from self._of_options(flat, options, open_)
        else:
            kinds = flat.get("type") or _likely(flat)
            for kind in kinds if isinstance(kinds, list) else [kinds]:
                yield from self._of_kind(kind, flat, open_)

    def _of_options(
        self, flat: dict[str, Any], options: list[Any], open_: frozenset[str]
    ) -> Iterator[Any]:
        why: NoExample | None = None
        for option in options:
            try:
                yield from self.candidates({"allOf": [flat, option]}, open_)
            except NoExample as error:
                why = error
        if why:
            raise why

    def _of_kind(self, kind: str, flat: dict[str, Any], open_: frozenset[str]) -> Iterator[Any]:
        if kind == "object":
            yield self._object(flat, open_)
        elif kind == "array":
            yield from self._arrays(flat, open_)
        elif kind == "string":
            yield from _texts(flat)
        elif kind in ("integer", "number"):
            yield from _numbers(flat, whole=kind == "integer")
        else:
            yield from {"boolean": (True, False), "null": (None,)}.get(kind, ())

    def _object(self, flat: dict[str, Any], open_: frozenset[str]) -> dict[str, Any]:
        known, needed = flat.get("properties", {}), flat.get("required", [])
        others = flat.get("additionalProperties", {})
        made: dict[str, Any] = {}
        for name in dict.fromkeys([*known, *needed]):
            if name not in needed and len(made) >= flat.get("maxProperties", math.inf):
                continue
            try:
                made[name] = self.made(known.get(name, others), open_)
            except NoExample:
                if name in needed:
                    raise
        for n in range(min(flat.get("minProperties", 0) - len(made), MOST_ITEMS)):
            made[f"more{n}"] = self.made(others, open_)
        return made

    def _arrays(self, flat: dict[str, Any], open_: frozenset[str]) -> Iterator[list[Any]]:
        first, least = flat.get("prefixItems", []), flat.get("minItems", 0)
        count = min(max(1, least, len(first)), flat.get("maxItems", math.inf), MOST_ITEMS)
        more, items = int(count) - len(first), flat.get("items", {})
        try:
            begun = [self.made(each, open_) for each in first[: int(count)]]
            if flat.get("uniqueItems"):
                values = self.candidates(items, open_)
                fit = (value for value in values if judged(value, items, self.root))
                yield begun + list(islice(fit, max(more, 0)))
            else:
                yield begun + [self.made(items, open_) for _ in range(more)]
        except NoExample:
            if least:
                raise
            yield []

    def _flat(self, schema: Any, open_: frozenset[str]) -> tuple[dict[str, Any], frozenset[str]]:
        """Returns a schema with what its $ref and allOf say, and `open_` with its references."""
        self.left -= 1
        if schema is False or self.left < 0:
            raise NoExample("it allows no value" if schema is False else "it has too many parts")
        if schema is True:
            return {}, open_
        flat = {name: own for name, own in schema.items() if name not in ("$ref", "allOf")}
        parts = list(schema.get("allOf", ()))
        if ref := schema.get("$ref"):
            if ref in open_:
                raise NoExample(f"{ref} contains itself")
            try:
                parts.append(target_of(ref, self.root))
            except Undecided:
                raise NoExample(f"the reference {ref!r:.80} names nothing in it") from None
            open_ |= {ref}
        for part in parts:
            other, open_ = self._flat(part, open_)
            for name, own in other.items():
                flat[name] = _both(name, flat[name], own) if name in flat else own
        return flat, open_


def _both(name: str, one: Any, other: Any) -> Any:
    """Merges the values that a keyword has in two schemas, both of which must hold."""
    if name == "properties":
        shared = {own: {"allOf": [one[own], other[own]]} for own in one.keys() & other.keys()}
        return one | other | shared
    if name == "required":
        return [*one, *other]
    if name == "enum":
        return [value for value in one if value in other]
    if name in LIMITS:
        return max(one, other) if "min" in name.lower() else min(one, other)
    return one


def _likely(flat: dict[str, Any]) -> str:
    """Returns the type that a schema without `type` describes."""
    if {"properties", "required", "minProperties"} & flat.keys():
        return "object"
    if {"items", "prefixItems", "minItems"} & flat.keys():
        return "array"
    return next((LIMITS[name][0] for name in flat if name in LIMITS), "string")


def _texts(flat: dict[str, Any]) -> Iterator[str]:
    pattern, least = flat.get("pattern"), flat.get("minLength", 0)
    if pattern is not None:
        try:
            yield from (text for text in SAMPLES if re.search(pattern, text))
        except re.error:
            raise NoExample(f"the pattern {pattern!r:.80} is not a regular expression") from None
        return
    if written := FORMATS.get(flat.get("format", "")):
        yield written
        return
    base = "text" * min(-(-max(least, 4) // 4), LONGEST_TEXT)
    length = int(min(max(least, 4), flat.get("maxLength", math.inf)))
    yield base[:length]
    yield from (f"{n}{base}"[: max(length, 2)] for n in range(10, 100))


def _numbers(flat: dict[str, Any], *, whole: bool) -> Iterator[float]:
    bounds = [flat[name] for name, (kind, _) in LIMITS.items() if kind == "number" and name in flat]
    step = flat.get("multipleOf") or 1
    values = [1, 0, *(own + more for own in bounds for more in (0, step, -step))]
    values += [sum(bounds) / len(bounds)] if bounds else []
    values += [0.5, *range(2, 100)]
    for value in values:
        if not whole and "multipleOf" not in flat:
            yield float(value)
            continue
        for near in (math.ceil(value / step) * step, math.floor(value / step) * step):
            if not whole or near == int(near):
                yield int(near) if whole else float(near)
