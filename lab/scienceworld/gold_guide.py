"""Guides an attempt through a task: from each deed of upstream's gold path to the next.

    gold path ─► deeds (focus, pick up, move …, and where) ─► the next action of any attempt

The gold path itself helps only from its start. Its deeds also help after a detour: the guide walks
back to the room of the next deed. It looks around a room before it names a thing there, uses the
names in the room's description, and does not open doors that are already open.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from envs.adapters.scienceworld.simulator import Turn

Played = Sequence[tuple[str, Turn]]
"""The commands of an attempt with upstream's replies."""

DOORS = {
    "art studio": ["hallway"],
    "bathroom": ["kitchen"],
    "bedroom": ["hallway"],
    "foundry": ["outside"],
    "greenhouse": ["hallway", "outside"],
    "hallway": ["art studio", "bedroom", "greenhouse", "kitchen", "living room", "workshop"],
    "kitchen": ["bathroom", "hallway", "outside"],
    "living room": ["hallway"],
    "outside": ["foundry", "greenhouse", "kitchen"],
    "workshop": ["hallway"],
}
"""Upstream's one house: the rooms behind each room's doors."""

_ROOM = re.compile(r"called the (.+?)\. (?:In it|Here)")
_WENT = re.compile(r"^You (?:move|teleport) to the (.+)\.$")
_FOCUSED = re.compile(r"^You focus on the (.+)\.$")
_CARRIED = re.compile(r"^You move the (.+) to the (.+)\.$")
_THING = re.compile(
    r"(?<!with )\b(?:an?|A) (?:substance called )?([a-z][\w ]*?)(?= in the | with a |[(),.:]| \(|$)"
)
_WALKING = ("go to ", "teleport to ", "look around")


@dataclass(frozen=True)
class Deed:
    """A gold-path command that does something. `room`: the room to do it in, "" if any room;
    `thing`: the thing to focus on or carry; `to`: where to move it; `gain`: the score it adds."""

    kind: Literal["focus", "carry", "other"]
    room: str
    command: str
    reply: str
    gain: float = 0.0
    thing: str = ""
    to: str = ""

    @property
    def action(self) -> str:
        """Returns the command, with things named as in a room's description."""
        if self.kind == "other":
            return self.command
        if self.kind == "focus":
            return f"focus on {self.thing}"
        if self.to == "inventory":
            return f"pick up {self.thing}"
        return f"move {self.thing} to {self.to}"

    def done_by(self, turn: Turn, gain: float) -> bool:
        """Returns whether a reply says that the deed is done, possibly with an equally good other
        thing. `gain`: the score that the command added."""
        if self.kind == "other" or turn.text == self.reply:
            return turn.text == self.reply
        if self.kind == "focus":
            focused = _FOCUSED.match(turn.text) is not None
            return focused and self.gain > 0 and gain > 0.9 * self.gain
        carried = _CARRIED.match(turn.text)
        if carried is None or carried[2] != self.to:
            return False
        return _within(carried[1], self.thing)


@dataclass
class Situation:
    """The state of an attempt: its room, the room descriptions seen, the remaining deeds."""

    room: str
    seen: dict[str, str]
    left: list[Deed]
    last: tuple[str, str] = ("", "")


class Guide:
    """A guide through one variation of a task, from its first observation and its gold path.

    `literal`: every command of the gold path is a deed, with its own words.
    """

    def __init__(self, first: str, gold: Played, *, literal: bool = False) -> None:
        self.first = first
        self.deeds = (
            [Deed("other", "", command, turn.text) for command, turn in gold]
            if literal
            else _deeds(first, gold)
        )

    def next(self, played: Played) -> str:
        """Returns the next action of an attempt."""
        now = self.situation(played)
        if now.last[1].startswith("Ambiguous request"):
            return "0"
        if not now.left:
            return "look around"
        deed = now.left[0]
        way = _way(now.room, deed.room)
        if way:
            shut = now.last == (f"go to {way[0]}", "The door is not open.")
            return f"{'open door' if shut else 'go'} to {way[0]}"
        if _unseen(deed, now.seen):
            return "look around"
        # the name of the description was not understood: upstream's own
        return deed.command if now.last[0] == deed.action else deed.action

    def distance(self, played: Played) -> int:
        """Counts the remaining actions."""
        now = self.situation(played)
        room, seen, count = now.room, dict(now.seen), 0
        for deed in now.left:
            count += len(_way(room, deed.room)) + _unseen(deed, seen) + 1
            room = deed.room or room
            seen.setdefault(room, "")
        return count

    def situation(self, played: Played) -> Situation:
        """The state of an attempt after the commands played."""
        room = _room(self.first)
        now = Situation(room, {room: self.first}, list(self.deeds))
        score = 0.0
        for command, turn in played:
            if went := _WENT.match(turn.text):
                now.room = went[1]
            elif "called the" in turn.text:
                now.seen[_room(turn.text)] = turn.text
            if now.left and now.left[0].done_by(turn, turn.score - score):
                _do(now, command, turn)
            score, now.last = turn.score, (command, turn.text)
        return now


def things(description: str) -> list[str]:
    """Lists the things named in a room's description, except the air and the agent."""
    inside = description.split("You also see:")[0].partition("called the")[2]
    names = (m[1] for line in inside.splitlines()[1:] for m in _THING.finditer(line))
    return [name for name in dict.fromkeys(names) if name != "air" and "temperature" not in name]


def _deeds(first: str, gold: Played) -> list[Deed]:
    room, score, focus, deeds = _room(first), 0.0, "", []
    seen = {room: first}
    for command, turn in gold:
        gain, score = turn.score - score, turn.score
        if went := _WENT.match(turn.text):
            room = went[1]
        elif focused := _FOCUSED.match(turn.text):
            focus = _listed(focused[1], command, things(seen.get(room, "")))
            deeds.append(Deed("focus", room, command, turn.text, gain, focus))
        elif carried := _CARRIED.match(turn.text):
            # a description says `frog egg`, and this reply `common toad`
            other = carried[1] in "".join(seen.values()) and not _within(carried[1], focus)
            thing = carried[1] if other or not focus else focus
            deeds.append(Deed("carry", room, command, turn.text, gain, thing, carried[2]))
        elif "called the" in turn.text:
            seen[room] = turn.text
        elif not command.startswith(_WALKING) and "already open" not in turn.text:
            place = "" if command.startswith("wait") else room
            deeds.append(Deed("other", place, command, turn.text, gain))
    return deeds


def _listed(name: str, command: str, names: Sequence[str]) -> str:
    """Returns what a room's description calls the thing that a reply calls `name`. The words may
    differ in the command, the reply and the description: adult apple tree, plant, apple tree."""
    if name in names:
        return name
    return max((other for other in names if _within(other, command)), key=len, default=name)


def _within(part: str, whole: str) -> bool:
    return set(part.split()) <= set(whole.split())


def _do(now: Situation, command: str, turn: Turn) -> None:
    """Cross off the next deed. If it was done with another thing, later deeds use that thing."""
    deed = now.left.pop(0)
    if deed.kind != "focus" or turn.text == deed.reply or command in (deed.action, deed.command):
        return
    description = now.seen.get(now.room, "")
    focus = _listed(turn.text[len("You focus on the ") : -1], command, things(description))
    lines = (line for line in description.splitlines() if focus in line)
    holder = next((things(f"called the\n{line}") for line in lines), [])
    thing = holder[0] if holder else focus
    now.left = [replace(d, thing=thing) if d.kind == "carry" else d for d in now.left]


def _unseen(deed: Deed, seen: dict[str, str]) -> bool:
    return deed.kind == "focus" and deed.room not in seen


def _room(description: str) -> str:
    room = _ROOM.search(description)
    return room[1] if room else ""


def _way(start: str, end: str) -> list[str]:
    """Returns the rooms on the shortest way, except the first; empty if there is no way."""
    ways = [[start]]
    for way in ways:  # grows while it is read
        if way[-1] == end:
            return way[1:]
        ways += [[*way, room] for room in DOORS.get(way[-1], ()) if room not in way]
    return []
