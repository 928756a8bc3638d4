"""Finds the action in a response: the text between action tags, after any thoughts."""

from __future__ import annotations

HOW_TO_ANSWER = (
    "Each turn, think briefly if you need to, then give exactly one action between <action> and "
    "</action>, for example <action>{example}</action>."
)
NO_ACTION = "No action was found in the answer. Give one action between <action> and </action>."


def action_in(response: str) -> str | None:
    """Returns the last tagged action of a response, on one line. If there are no tags, a one-line
    response is the action itself. Otherwise None."""
    _, tagged, last = response.rpartition("<action>")
    action = last.partition("</action>")[0] if tagged else response
    lines = [line for line in action.splitlines() if line.strip()]
    if len(lines) != 1 and not tagged:
        return None
    return " ".join(" ".join(lines).split()) or None
