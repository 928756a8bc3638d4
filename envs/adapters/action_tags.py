"""Finds the action in a response: the text between action tags, after any thoughts."""

from __future__ import annotations

import re

HOW_TO_ANSWER = (
    "Each turn, think briefly if you need to, then give exactly one action between <action> and "
    "</action>, for example <action>{example}</action>."
)
NO_ACTION = "No action was found in the answer. Give one action between <action> and </action>."
_TAGGED = re.compile(r"<action>\s*(.*?)\s*(?:</action>|$)", re.DOTALL)


def action_in(response: str) -> str | None:
    """Returns the last tagged action of a response, on one line. If there are no tags, a one-line
    response is the action itself. Otherwise None."""
    tagged = _TAGGED.findall(response)
    action = tagged[-1] if tagged else response
    lines = [line for line in action.splitlines() if line.strip()]
    if len(lines) != 1 and not tagged:
        return None
    return " ".join(" ".join(lines).split()) or None
