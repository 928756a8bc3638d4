"""Limits on the contents of one request, and the threads in which long requests are read.

    bytes ─► values ─► characters ─► names and ids ─► rendered ─► tokens
             └──────────────── before the request is rendered ┘

A long request is read and rendered in a thread, so that the event loop answers others meanwhile.
Limits of a whole attempt are in actors.gateway.session.
"""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from actors.dialects.chat_completions import AgentRequest, Refused, bad
from actors.dialects.dialects import MOST_PARTS, values_in
from actors.dialects.fields import RENDERED
from actors.gateway.call_tree import Node
from actors.gateway.session import Session

LONG = 1 << 15
"""A request of this many bytes or more is read in a thread. A shorter one takes less than 50 ms."""
MOST_VALUES = 2_000_000
"""The most objects, lists and items of a request: each takes a hundred bytes once it is parsed."""
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string in JSON text, even one without an end, so that the search never begins again inside a
string."""
MOST_CHARACTERS = 1 << 23
"""The most characters of a request, whatever the context: a tokenizer takes 170 bytes for each."""
COMPOSED = 4
"""How many characters Unicode may compose into one before a tokenizer counts them."""
LONGEST_NAME = 512
"""The most characters of a name or an id. A chat template may leave them out, so the length of the
context does not limit them."""
MOST_STOPS, LONGEST_STOP = 64, 1024
MOST_MESSAGES = 4096
"""The most messages of a request, or items of its other lists. A library that validates them
reports each wrong one in dozens of ways, which takes milliseconds."""
THREADS = 2


def check_values(raw: bytes) -> None:
    """Refuses a body whose values, once parsed, would take much more memory than its text."""
    if len(raw) <= MOST_VALUES or _marks(raw) <= MOST_VALUES:
        return
    wide = b"\0" in raw[:4]  # UTF-16 or UTF-32, in which a byte of a quote may be another letter's
    if wide or _marks(TEXT.sub(b"", raw)) > MOST_VALUES:
        raise Refused(413, "request_too_large", f"a request has at most {MOST_VALUES:,} values")


def _marks(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def most_characters(tokenizer: Any, context_length: int) -> int:
    """Returns the most characters of a text that fits a context.

    No token stands for more characters than the longest token of the vocabulary has. In most
    tokenizers that is a run of spaces. A byte-level vocabulary writes each character as one or more
    characters.
    """
    return min(MOST_CHARACTERS, context_length * _longest_token(tokenizer) * COMPOSED)


@cache
def _longest_token(tokenizer: Any) -> int:
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else ()
    return max(map(len, vocabulary), default=32)


def characters(value: Any) -> int:
    """Counts the characters of all texts in a JSON value."""
    return sum(map(len, _texts(value)))


def _texts(value: Any) -> Iterator[str]:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def check_messages(body: Mapping[str, Any]) -> None:
    """Refuses lists that are too long to be validated."""
    for name, value in body.items():
        if not isinstance(value, list):
            continue
        if len(value) > MOST_MESSAGES:
            raise bad(f"{name:.60}: has {len(value):,} items; it may have {MOST_MESSAGES:,}")
        for n, message in enumerate(value if name in ("messages", "input") else ()):
            if values_in(message) > MOST_PARTS:
                raise bad(f"{name}[{n}]: has more than {MOST_PARTS:,} values; write fewer parts")


def check_names(request: AgentRequest) -> None:
    """Refuses names, ids and stop texts that are too long."""
    for tool in request.tools:
        _check_name("tools: a name", tool["function"]["name"])
    for n, message in enumerate(request.messages):
        for name in ("name", "tool_call_id"):
            _check_name(f"messages[{n}]: {name}", message.get(name))
        for call in message.get("tool_calls", ()):
            _check_name(f"messages[{n}]: the id of a call", call["id"])
            _check_name(f"messages[{n}]: the name of a tool", call["function"]["name"])
    if len(request.stop) > MOST_STOPS or any(len(stop) > LONGEST_STOP for stop in request.stop):
        raise bad(f"stop: at most {MOST_STOPS} texts of at most {LONGEST_STOP} characters each")


def _check_name(what: str, name: Any) -> None:
    if isinstance(name, str) and len(name) > LONGEST_NAME:
        raise bad(f"{what} has {len(name):,} characters; it may have {LONGEST_NAME}")


class RequestReader:
    """Reads requests of all attempts: short ones at once, long ones in threads. The first request
    of each dialect is read in a thread too, since reading it imports the dialect's translator."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="long-requests")
        self.imported: set[str] = set()

    async def read(
        self,
        session: Session,
        raw: bytes,
        body: Mapping[str, Any],
        dialect: str,
        read: Callable[[Mapping[str, Any]], AgentRequest],
    ) -> tuple[AgentRequest, Node | None]:
        """Returns a request, and its node if the request was rendered in the same thread. Raises
        Refused."""
        if len(raw) < LONG and dialect in self.imported:
            check_messages(body)
            request = read(body)
            check_names(request)
            return request, None
        async with session.reading_long:  # an attempt uses one thread, whatever it sends
            loop, given = asyncio.get_running_loop(), (session, body, read)
            request, node, seconds = await loop.run_in_executor(self.threads, _read_long, *given)
            session.metrics.render_s += seconds
            self.imported.add(dialect)
            return request, node

    def close(self) -> None:
        """Ends the threads without waiting for them."""
        self.threads.shutdown(wait=False, cancel_futures=True)


def _read_long(
    session: Session,
    body: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], AgentRequest],
) -> tuple[AgentRequest, Node, float]:
    """Reads and renders a request in a thread. Also returns the seconds that this took."""
    began = time.monotonic()
    if session.context_length is not None:
        most = most_characters(session.reader.chat.chat.tokenizer, session.context_length)
        if (count := characters([body.get(name) for name in RENDERED])) > most:
            raise session.too_long(f"messages and tools have {count} characters, not {most}")
    check_messages(body)
    request = read(body)
    check_names(request)
    return request, session.place(request), time.monotonic() - began
