"""TextWorld: generated text adventures (Microsoft, MIT). `pip install 'r3l[textworld]'`.

A step is one command. The reward is the share of the game's points that the step earned. Games are
generated from the task's seed and cached.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from envs import requirements
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, action_in
from r3l.rollout.env_interface import EnvSpec

SYSTEM = (
    "You play a text adventure: read what to do, then move, look, take, open, unlock, put, eat "
    "or use things to get it done. Commands are short, like go north, take red key from table, "
    "unlock chest with red key, put apple on stove, look, inventory, examine box. "
    + HOW_TO_ANSWER.format(example="open wooden door")
)
META = frozenset(
    "save restore restart quit q undo oops script transcript unscript noscript notify verbose "
    "brief superbrief normal long short version verify recording replay record full fullscore "
    "about credits pronouns nouns".split()
)
"""Verbs for the interpreter instead of the game; `save` would write a file."""
LONGEST_COMMAND = 200  # characters; the interpreter cuts longer lines
_STATUS = re.compile(r"\s*>?[ \t]*-= [^\n]* =-\s*-?\d+/\d+\s*$")


class TextWorld:
    """Generates a game per seed, with `rooms` rooms, `objects` objects and `quest` commands to win.

    `max_steps`: command limit; `cache`: folder for generated games.
    """

    def __init__(
        self,
        *,
        rooms: int = 3,
        objects: int = 5,
        quest: int = 4,
        max_steps: int = 30,
        cache: str = "~/.cache/r3l/textworld",
    ) -> None:
        self.library = requirements.package("textworld", "textworld", "textworld")
        sizes = {"rooms": rooms, "objects": objects, "quest": quest, "max_steps": max_steps}
        for name, value in sizes.items():
            requirements.integer(name, value, 1, 100_000)
        self.rooms, self.objects, self.quest = rooms, objects, quest
        self.cache = Path(cache).expanduser()
        self.spec = EnvSpec(
            name="textworld",
            system_prompt=SYSTEM,
            max_steps=max_steps,
            max_response_tokens=256,
            sessions=16,
        )
        self.game: Any = None
        self.file = Path()
        self.state: Any = None

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the game of a seed."""
        file = self._generated(seed)
        if self.game is None or file != self.file:
            self.close()
            self.game, self.file = self._start(file), file
        self.state = self.game.reset()
        return _clean(self.state.feedback), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        command = action_in(action)
        if problem := _refusal(command):
            return problem, 0.0, False, False, self._info()
        before = self.state.score or 0
        self.state, _, done = self.game.step(command)
        reward = ((self.state.score or 0) - before) / (self.state.max_score or 1)
        text = _clean(self.state.feedback) or "Nothing is said."
        return text, reward, bool(done), False, {} if done else self._info()

    def feedback(self) -> str:
        state = self.state
        how = "The game was won." if state.won else "The game was lost." if state.lost else ""
        return f"{how} {state.score or 0} of {state.max_score} points.".strip()

    def demonstration(self) -> list[str]:
        """Returns the commands that win this game."""
        game = self.library.start(str(self.file), self.library.EnvInfos(policy_commands=True))
        try:
            return list(game.reset().policy_commands)
        finally:
            game.close()

    def close(self) -> None:
        if self.game is not None:
            self.game.close()
            self.game = None

    def _start(self, file: Path) -> Any:
        shown = ("feedback", "won", "lost", "score", "max_score", "admissible_commands")
        return self.library.start(str(file), self.library.EnvInfos(**dict.fromkeys(shown, True)))

    def _info(self) -> dict[str, Any]:
        commands = self.state.admissible_commands or []
        return {"admissible": [c for c in commands if not _refusal(c)]}

    def _generated(self, seed: int) -> Path:
        """Returns the compiled game of a seed. Generates it once, then reads it from the cache."""
        shape = [self.library.__version__, self.rooms, self.objects, self.quest]
        key = hashlib.sha256(json.dumps(shape).encode()).hexdigest()
        file = self.cache / key[:16] / f"{seed}.z8"
        if file.exists():
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            self._make(seed, made)
            os.replace(made.with_suffix(".json"), file.with_suffix(".json"))
            os.replace(made, file)
        return file

    def _make(self, seed: int, file: Path) -> None:
        options = self.library.GameOptions()
        options.seeds, options.path = seed, str(file)
        options.nb_rooms, options.nb_objects = self.rooms, self.objects
        options.quest_length = self.quest
        self.library.make(options)


def _refusal(command: str | None) -> str:
    """Returns why a command must not reach the interpreter, or "" if it may."""
    if command is None:
        return NO_ACTION
    if len(command) > LONGEST_COMMAND or not command.isprintable():
        return f"That is not a command: give a short one, of at most {LONGEST_COMMAND} characters."
    for part in re.split(r"[.,;]|\bthen\b|\band\b", command.lower()):
        verb = part.split()[:1]
        if verb and verb[0] in META:
            return f"The command {verb[0]} is not part of the game."
    return ""


def _clean(text: str) -> str:
    """Removes the banner and the status line from the game's text."""
    banner = text.rfind("$$")
    if banner >= 0:
        text = text[banner:].partition("\n")[2]
    return re.sub(r"\n{2,}", "\n", _STATUS.sub("", text)).strip().removesuffix(">").strip()
