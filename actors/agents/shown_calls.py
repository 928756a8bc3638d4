"""Writes the calls of an attempt as a chat that a person reads.

call 1, after call 0: 61 tokens read, 9 sampled in 0.2 s, trained
  tool: 156
  assistant: It is 156.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from r3l.views.tape import TapedCall

LONGEST = 2000
"""The most characters of a message that are shown."""


def chat_lines(calls: Sequence[TapedCall], *, recorded: bool) -> Iterator[str]:
    """Yields the lines of a chat: the new messages of each call, and its reply. `recorded`: the
    calls come from a record, so it is known which replies are trained."""
    for number, call in enumerate(calls):
        if call.model:
            took = f"{call.seconds:.1f} s, not trained"
            yield f"call {number}, to {call.model}: {call.finish}, {took}"
            continue
        after = f", after call {call.parent}" if call.parent >= 0 else ", a new conversation"
        sampled = f"{call.read} tokens read, " + (
            f"{call.tokens} sampled in {call.seconds:.1f} s" if call.reply else "no reply came"
        )
        yield f"call {number}{after}: {sampled}{use_of(call) if recorded else ''}"
        if call.parent < 0 and call.tools:
            yield f"  tools: {', '.join(call.tools)}"
        for message in (*call.messages, *([call.reply] if call.reply else ())):
            yield from _message(message)
        if call.finish not in ("stop", ""):
            yield f"  (the reply was cut: {call.finish})"


def use_of(call: TapedCall) -> str:
    """Returns in words whether the reply of a recorded call is trained."""
    return ", trained" if call.trained and call.conversation >= 0 else ", not trained"


def _message(message: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of a message: its role, its text and its tool calls."""
    for name in ("reasoning_content", "content"):
        text = str(message.get(name) or "")
        role = f"{message['role']}{' (reasoning)' if name != 'content' else ''}"
        cut = f"… ({len(text)} characters)" if len(text) > LONGEST else ""
        first, *others = (text[:LONGEST] + cut).splitlines() or [""]
        if text or (name == "content" and not message.get("tool_calls")):
            yield f"  {role}: {first}"
            yield from (f"    {line}" for line in others)
    for call in message.get("tool_calls") or ():
        made = call["function"]
        yield f"  {message['role']} calls {made['name']} with {made['arguments']}"
