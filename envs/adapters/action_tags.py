"""The action in a response: one action between tags, thoughts before it."""

from __future__ import annotations

import re

HOW_TO_ANSWER = (
    "Each turn, think briefly if you need to, then give exactly one action between <action> and "
    "</action>, for example <action>{example}</action>."
)
NO_ACTION = "No action was found in the answer. Give one action between <action> and </action>."
_TAGGED = re.compile(r"<action>\s*(.*?)\s*(?:</action>|$)", re.DOTALL)


def action_in(response: str) -> str | None:
    """The last tagged action of a response, on one line; without tags a response of one line is
    the action itself. None if there is neither."""
    tagged = _TAGGED.findall(response)
    action = tagged[-1] if tagged else response
    lines = [line for line in action.splitlines() if line.strip()]
    if len(lines) != 1 and not tagged:
        return None
    return " ".join(" ".join(lines).split()) or None
