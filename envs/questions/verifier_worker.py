"""The worker process of `envs.questions.verifier`: compares answers with math-verify, one line per
request and reply.

    {"gold": "1/2", "answer": "0.5", "cpu_s": 3}  ─►  {"verdict": "correct"}

Started as a file, so that it needs none of this package on its path. The kernel kills it if a
comparison takes more than `cpu_s` of processor time, HANG_S or MEMORY_BYTES, so neither a huge
integer, a hang nor a dead parent keeps it alive.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from decimal import Decimal
from functools import lru_cache
from typing import Any

MEMORY_BYTES = 2 << 30
HANG_S = 60
"""Longer than a comparison may take (envs.questions.verifier.SILENT_S)."""
LONGEST = 2000
"""Longest answer that is compared, characters; longer ones are wrong."""
DEEPEST = 30
"""Deepest nesting of brackets: the parser's time grows steeply with it."""

_THIN_SPACE = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\})(?=\d{3})")
_SHORT_FRACTION = re.compile(r"\\[dt]?frac\s*(\d)(\d)")
_SCIENTIFIC = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d{1,3}")


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's output must not look like a reply
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    for timer in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(timer, signal.SIG_DFL)  # the parent may ignore them
    compare("1/2", "0.5")  # the first comparison imports libraries, which takes a second or more
    print(json.dumps({"verdict": "ready"}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(HANG_S)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        verdict = compare(request["gold"], request["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(json.dumps({"verdict": verdict}), file=answers)


def compare(gold: str, answer: str) -> str:
    """correct | wrong | unreadable | bad_gold. If a library raises on the policy's text, the answer
    is unreadable."""
    from math_verify import verify

    known = _gold(gold)
    if not known:
        return "bad_gold"
    if len(answer) > LONGEST or _depth(answer) > DEEPEST:
        return "unreadable"
    readable = False
    for text in _notations(answer):
        try:
            read = _read(text)
            readable = readable or bool(read)
            # The order matters: gold first.
            if read and verify(list(known), read, timeout_seconds=None):
                return "correct"
        except (Exception, RecursionError):
            continue
    return "wrong" if readable else "unreadable"


def _notations(answer: str) -> list[str]:
    """The forms of an answer to try: LaTeX and plain text, in notations that math-verify reads."""
    text = _THIN_SPACE.sub("", answer.strip().rstrip(". "))
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    if _SCIENTIFIC.fullmatch(text):
        text = format(Decimal(text), "f")
    return [f"\\boxed{{{text}}}", text]


def _depth(text: str) -> int:
    """Nesting depth of the opening brackets of a text, closed or not."""
    depth = deepest = 0
    for character in text:
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        deepest = max(deepest, depth)
    return deepest


@lru_cache(maxsize=4096)
def _gold(gold: str) -> tuple[Any, ...]:
    # Bare LaTeX is not recognised: without wrapping, one in five answers of MATH is not read.
    return tuple(_read(f"\\boxed{{{gold}}}"))


def _read(text: str) -> list[Any]:
    from math_verify import parse

    return list(parse(text, parsing_timeout=None))


if __name__ == "__main__":
    main()
