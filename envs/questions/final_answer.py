"""Extraction of the final answer from a response."""

from __future__ import annotations

import re

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_STATED = re.compile(
    r"^\W*(?:(?:the )?(?:final )?answer(?: is)?\s*:|####)[ \t*]*(\S.*?)[ *]*$", re.I | re.M
)


def boxed(text: str) -> str | None:
    r"""The content of the last closed \boxed{…} or \fbox{…} of a text; None without one."""
    for start in sorted(
        (m.end() for m in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)), reverse=True
    ):
        depth, at = 1, start
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0) if text[at - 1] != "\\" else 0
            at += 1
        if not depth:
            return text[start : at - 1].strip()
    return None


def tagged(text: str) -> str | None:
    """The content of the last <answer>…</answer> of a text; None without one."""
    found = _TAG.findall(text)
    return str(found[-1]).strip() if found else None


def stated(text: str) -> str | None:
    """The text after the last "Answer:" or "####" at the beginning of a line; None without one."""
    found = _STATED.findall(text)
    return str(found[-1]).strip() if found else None
