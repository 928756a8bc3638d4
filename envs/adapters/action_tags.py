"""Finds the action in a response: the text between action tags, after any thoughts."""

HOW_TO_ANSWER = (
    "Each turn, think briefly if you need to, then give exactly one action between <action> and "
    "</action>, for example <action>{example}</action>."
)
NO_ACTION = "No action was found in the answer. Give one action between <action> and </action>."


def action_in(response: str) -> str | None:
    """Returns the last tagged action as one line. A one-line response without tags is itself the
    action. Returns None if there is no action."""
    text = text_in(response)
    return None if text is None else " ".join(text.split())


def text_in(response: str) -> str | None:
    """Returns the action that `action_in` finds, but keeps its line breaks and spaces."""
    _, tagged, last = response.rpartition("<action>")
    text = (last.partition("</action>")[0] if tagged else response).strip()
    return (text or None) if tagged or len(text.splitlines()) == 1 else None
