"""Checks and cleans text from outside: users' files and code, environments and models. Writes time
spans and sizes with their units.

plain       returns a text that can be stored and sent, as Python's own `str`; raises ValueError for
            half a surrogate pair and for a text that is too long
label       turns any text into a name under which things are counted
printable   escapes unprintable characters, which might control a terminal
time_span   formats seconds
size_text   formats bytes
"""

from typing import Any
from unicodedata import category

GIB = 1 << 30  # bytes
TEXT_LIMIT = 4 << 20  # bytes of one text
LABEL_LIMIT = 80  # bytes of a cause or another name that is counted
NESTING_LIMIT = 16  # levels of plain values
_PLAIN = "\n\t\u200c\u200d"  # line ends, tabs, and what joins letters and emoji


def plain(value: object, what: str, limit: int = TEXT_LIMIT) -> str:
    """Returns a text as a plain `str`. Raises ValueError if the value is not text, holds half a
    surrogate pair or has more than `limit` bytes in UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is {type(value).__name__}; it must be text")
    text = str.__str__(value)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} holds half a surrogate pair, {text[error.start]!a}; write the whole character"
        ) from None
    if size > limit:
        raise ValueError(f"{what} has {size} bytes; the limit is {limit}")
    return text


def plain_value(value: Any, what: str, depth: int = 0) -> Any:
    """Replaces numpy numbers in a value with Python numbers. Raises ValueError if the value holds
    anything that cannot be sent."""
    if depth > NESTING_LIMIT:
        raise ValueError(f"{what} nests deeper than {NESTING_LIMIT} levels")
    if isinstance(value, str):
        return plain(value, what)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        items = value.items()
        return {plain(key, what): plain_value(item, what, depth + 1) for key, item in items}
    if isinstance(value, list | tuple):
        return [plain_value(item, what, depth + 1) for item in value]
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"{what} holds {value!r:.80}, which has more than 64 bits")
    if value is None or type(value) in (bool, int, float, bytes):
        return value
    raise ValueError(
        f"{what} holds {value!r:.80}; use numbers, text, bytes, lists and maps with text keys"
    )


def encodable(text: str) -> str:
    """Replaces each half of a surrogate pair with a question mark."""
    return text.encode("utf-8", "replace").decode()


def shorten(text: str, limit: int) -> str:
    """Cuts a text to at most `limit` bytes, without cutting a character in two."""
    return text.encode()[:limit].decode(errors="ignore")


def label(text: str, limit: int = LABEL_LIMIT) -> str:
    """Returns a printable name of at most `limit` bytes, made from any text."""
    return shorten(printable(text).replace("\n", " ").replace("\t", " "), limit)


def printable(text: str) -> str:
    """Escapes unprintable characters, such as \\x1b and marks that reverse text. Keeps line ends
    and tabs."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    shown = character.isprintable() or character in _PLAIN or category(character) == "Zs"
    return character if shown else character.encode("unicode_escape").decode()


def time_span(seconds: float) -> str:
    """Formats a time span, such as `1.5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def size_text(size: float) -> str:
    """Formats a number of bytes, such as `942 MB`. A GB has 10⁹ bytes."""
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB" if size < 999.5 else f"{size / 1000:.3g} TB"
