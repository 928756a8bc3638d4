"""Shortens prompts and observations for small policies, which learn the missing parts in a warm-up.

`brief` removes articles, and the words "a substance called". It removes the agent and the air,
which are in every room. It removes the initial state of each thing: a room's door is open, other
things are closed, off or empty. The words that stay keep their order.
"""

import re

SYSTEM = (
    "Do the task in the house, one action a turn: go to room, look around, focus on thing, pick up "
    "thing, move thing to thing, open thing, use thing on thing, inventory, wait1. A wrong focus "
    "ends it."
)
PROMPTS = {
    "reflect_system": "Review this attempt and answer with one JSON object: trajectory_summary, "
    "root_cause_analysis, trajectory_outcome, improvement_suggestion, retry_from_step.",
    "reflect_user": "{attempt}\nreward {reward}.",
    "guidance": "advice: {improvement_suggestion}.",
    "advice": "advice: {improvement_suggestion}.",
}
NOT_UNDERSTOOD = "No known action matches that input."
"""Upstream's reply to an unknown command."""
_ROOM = re.compile(
    r"^This (?:room|outside location) is called the (.+)\. (?:In it, |Here )you see:"
)
_SHORTER = [
    (re.compile(pattern), to)
    for pattern, to in (
        (r"\ba substance called ", ""),
        (r"\b[Aa]n? |\b[Tt]he |^some ", ""),
        (r" \(containing nothing\)", ""),
        (r"\. (?:On|In) [\w ]+ is: nothing(?=\.|$)", ""),
        (r", which is (?:turned off|deactivated|closed)", ""),
        (r"\. [\w ]+ door is closed(?=\.|$)", ""),
        (r" \(that is open\)", ""),
        (r", currently reading temperature of (-?\d+) degrees celsius", r" (\1 celsius)"),
        (r"\. (?:On|In) [\w ]+ is: (.+?)\.?$", r" (\1)"),
        (r"\. (?:On|In) [\w ]+ is: ([^().]+)\.?", r" (\1)"),
        (r"\(containing ", "("),
        (r"^door to ", ""),
        (r"[., ]+$", ""),
    )
]


def brief(text: str) -> str:
    """Shortens one of upstream's texts."""
    lines: list[str] = []
    listing: list[str] = []
    for line in text.splitlines():
        if line.startswith("\t"):
            name = _shorter(line.strip())
            listing += [name] if name not in ("agent", "air") else []
            continue
        lines += _closed(listing)
        if room := _ROOM.match(line):
            lines.append(f"in {room[1]} you see:")
        elif line.startswith("You also see:"):
            lines.append("doors:")
        elif line.strip() and not line.startswith(("Task Description:", "Task description:")):
            lines.append(" ".join(line.split()))
    return " ".join([*lines, *_closed(listing)])


def _closed(listing: list[str]) -> list[str]:
    """Joins a finished listing into one text, and empties the list."""
    text = ", ".join(listing)
    listing.clear()
    return [f"{text}."] if text else []


def _shorter(line: str) -> str:
    for pattern, to in _SHORTER:
        line = pattern.sub(to, line)
    return line
