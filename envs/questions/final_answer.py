"""Finds the final answer in a response. Every search takes time linear in the text's length."""

import re

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_NAMED = re.compile(r"(?:the )?(?:final )?answer(?: is)?\s*:", re.IGNORECASE)
_MARKS = re.compile(r"\W*")


def boxed(text: str) -> str | None:
    r"""Returns the content of the last closed \boxed{…} or \fbox{…}; None if there is none."""
    opened: list[int] = []  # for each open brace, where a box's content starts; -1 for others
    start = end = -1
    for found in _BRACES.finditer(text):
        token = found[0]
        if token[-1] == "{" and token != r"\{":
            opened.append(found.end() if len(token) > 1 else -1)
        elif token == "}" and opened and (begun := opened.pop()) > start:
            start, end = begun, found.start()
    return None if start < 0 else text[start:end].strip()


def tagged(text: str) -> str | None:
    """Returns the content of the last <answer>…</answer> in a text; None if there is none."""
    opened, content = -1, None
    for found in _TAG.finditer(text):
        if not found[1]:
            opened = found.end()
        elif opened >= 0:
            content, opened = text[opened : found.start()].strip(), -1
    return content


def stated(text: str) -> str | None:
    """Returns the text after the last "Answer:" or "####" at the start of a line, or else None."""
    for line in reversed(text.split("\n")):
        if (marks := _MARKS.match(line)) is None:
            continue
        begun = marks.end()
        if (hashes := line.rfind("####", 0, begun)) >= 0:
            begun = hashes + 4
        elif (named := _NAMED.match(line, begun)) is not None:
            begun = named.end()
        else:
            continue
        if content := line[begun:].strip(" \t*\r"):
            return content
    return None
