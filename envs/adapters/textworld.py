"""TextWorld: generated text adventures (Côté et al. 2018, arXiv:1806.11532; Microsoft, MIT). Needs
`pip install 'r3l[textworld]'`. A kind of game is chosen by name: `textworld:coin_collector`.

A step is one command. The reward is the change of the score: the score is the share of the game's
points so far, and 1 once the game is won. A game is generated once, from the task's seed, and kept
on disk.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs import requirements
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, action_in
from envs.base import SPLIT_SIZE, SPLITS, ListedTasks, SeededTasks, TaskSource
from r3l.errors import EnvironmentFailed, UserError, did_you_mean
from r3l.records import Task
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

SYSTEM = (
    "You play a text adventure: read what to do, then move, look, take, open, unlock, put, cook, "
    "cut, eat or use things to get it done. Commands are short, like go north, take red key from "
    "table, unlock chest with red key, put apple on stove, look, inventory, examine box. "
    + HOW_TO_ANSWER.format(example="open wooden door")
)
EITHER = (False, True)
KINDS: dict[str, dict[str, tuple[Any, Sequence[Any]]]] = {
    "coin_collector": {"level": (3, range(1, 301))},
    "treasure_hunter": {"level": (5, range(1, 31))},
    "cooking": {
        "recipe": (1, range(1, 6)),
        "take": (1, range(6)),
        "go": (1, (1, 6, 9, 12)),
        "open": (False, EITHER),
        "cook": (False, EITHER),
        "cut": (False, EITHER),
        "drop": (False, EITHER),
        "recipe_seed": (0, range(1 << 31)),
        "split": ("", ("", "train", "valid", "test")),
    },
    "simple": {
        "rewards": ("dense", ("dense", "balanced", "sparse")),
        "goal": ("detailed", ("detailed", "brief", "none")),
        "test": (False, EITHER),
    },
    "custom": {
        "rooms": (3, range(1, 101)),
        "objects": (5, range(1, 101)),
        "quest": (4, range(1, 51)),
    },
}
"""The kinds of games. For each setting, the default and what it may be. All kinds but `custom` are
upstream's challenges, with the names of its program tw-make. The settings of `custom` are called
--world-size, --nb-objects and --quest-length there."""
META = frozenset(
    "save restore restart quit q undo oops script transcript unscript noscript notify verbose "
    "brief superbrief normal long short version verify recording replay record full fullscore "
    "about credits pronouns nouns".split()
)
"""Verbs for the interpreter instead of the game; `save` would write a file."""
LONGEST_COMMAND = 200  # characters; the interpreter cuts longer lines
TRIES = 10
"""How many seeds to try for a game. From some seeds upstream cannot make the requested quest."""
_STATUS = re.compile(r"\s*>?[ \t]*-= [^\n]* =-\s*-?\d+/\d+\s*$")


class TextWorld:
    """Plays games of one of KINDS. `settings`: the settings of that kind.

    `games`: number of games in each split (0: a game for every task); `only_last_action`: name only
    the last command of a solution at the start, as upstream's option; `admissible`: end every
    observation with the possible commands; `max_steps`: command limit; `cache`: folder for games;
    `max_response_tokens`: token limit for a response.
    """

    replans = True

    def __init__(
        self,
        kind: str,
        *,
        games: int = 0,
        only_last_action: bool = False,
        admissible: bool = False,
        max_steps: int = 30,
        max_response_tokens: int = 256,
        cache: str = "~/.cache/r3l/textworld",
        **settings: Any,
    ) -> None:
        self.settings = _settings(kind, settings)
        self.library = requirements.package(f"textworld:{kind}", "textworld", "textworld")
        requirements.integer("games", games, 0, SPLIT_SIZE)
        self.kind, self.admissible = kind, admissible
        self.only_last_action = only_last_action
        self.cache = Path(cache).expanduser()
        self.spec = EnvSpec(
            name=f"textworld:{kind}",
            system_prompt=SYSTEM,
            max_steps=requirements.integer("max_steps", max_steps, 1, 100_000),
            max_response_tokens=max_response_tokens,
            sessions=16,
        )
        self.game: Any = None
        self.file = Path()
        self.state: Any = None
        self.points = 0.0
        self.commands: list[str] = []

    @staticmethod
    def task_source(kind: str, *, games: int = 0, **_: Any) -> TaskSource:
        """Returns `games` tasks for each split, or a task for every seed."""
        name = f"textworld:{kind}"
        if not games:
            return SeededTasks(name)
        return ListedTasks(
            {
                split: [
                    Task(f"{name}/{split}/{n:06d}", name, place * SPLIT_SIZE + n)
                    for n in range(games)
                ]
                for place, split in enumerate(SPLITS)
            }
        )

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Starts the game of a seed. Raises EnvironmentFailed if none can be made."""
        file = self._generate(seed)
        if self.game is None or file != self.file:
            self.close()
            self.game, self.file = self._start(file), file
        self.state, self.points, self.commands = self.game.reset(), 0.0, []
        return self._seen(_clean(self.state.feedback)), self._info()

    def step(self, action: str) -> StepAnswer:
        command = action_in(action)
        if problem := _refusal(command):
            return self._seen(problem), 0.0, False, False, self._info()
        self.state, _, done = self.game.step(command)
        self.commands.append(str(command))
        before, self.points = self.points, self._score()
        text = _clean(self.state.feedback) or "Nothing is said."
        if done:
            return f"{text}\n{self.feedback()}", self.points - before, True, False, {}
        return self._seen(text), self.points - before, False, False, self._info()

    def feedback(self) -> str:
        state = self.state
        how = "The game was won." if state.won else "The game was lost." if state.lost else ""
        return f"{how} {state.score or 0} of {state.max_score} points.".strip()

    def demonstration(self) -> list[str]:
        """Returns the commands that win this game from here, or [] if it is lost."""
        game = self.library.start(str(self.file), self.library.EnvInfos(policy_commands=True))
        try:
            state = game.reset()
            for command in self.commands:
                state, _, _ = game.step(command)
            return list(state.policy_commands or [])
        finally:
            game.close()

    def close(self) -> None:
        if self.game is not None:
            self.game.close()
            self.game = None

    def _score(self) -> float:
        share = (self.state.score or 0) / (self.state.max_score or 1)
        return 1.0 if self.state.won else min(max(share, 0.0), 1.0)

    def _start(self, file: Path) -> Any:
        shown = ("feedback", "won", "lost", "score", "max_score", "admissible_commands")
        return self.library.start(str(file), self.library.EnvInfos(**dict.fromkeys(shown, True)))

    def _seen(self, text: str) -> str:
        if not self.admissible:
            return text
        return f"{text}\nPossible now: {', '.join(self._info()['admissible'])}."

    def _info(self) -> dict[str, Any]:
        commands = self.state.admissible_commands or []
        return {"admissible": sorted(c for c in commands if not _refusal(c))}

    def _generate(self, seed: int) -> Path:
        """Returns the compiled game of a seed. Generates it if the cache does not have it."""
        shape = [self.library.__version__, self.kind, self.settings, self.only_last_action]
        key = hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()
        file = self.cache / self.kind / key[:16] / f"{seed}.z8"
        if file.exists():
            return file
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            made = Path(folder) / file.name
            with contextlib.redirect_stdout(io.StringIO()):
                self._make(seed, made)
            os.replace(made.with_suffix(".json"), file.with_suffix(".json"))
            os.replace(made, file)
        return file

    def _make(self, seed: int, file: Path) -> None:
        """Generates a game and compiles it to `file`."""
        from textworld.challenges import CHALLENGES
        from textworld.generator import QuestGenerationError, compile_game, make_game

        for number in range(TRIES):
            options = self.library.GameOptions()
            options.grammar.only_last_action = self.only_last_action
            options.seeds, options.path = seed + number * len(SPLITS) * SPLIT_SIZE, str(file)
            try:
                if self.kind == "custom":
                    options.nb_rooms, options.nb_objects, options.quest_length = (
                        self.settings[name] for name in ("rooms", "objects", "quest")
                    )
                    game = make_game(options)
                else:
                    _, make, _ = CHALLENGES[f"tw-{self.kind}"]
                    game = make(self.settings, options)
            except QuestGenerationError:
                continue
            compile_game(game, options)
            return
        raise EnvironmentFailed(
            f"textworld:{self.kind}: no game could be made from seed {seed} with {self.settings}",
            cause="no_game",
        )


def _settings(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns a kind's settings with its defaults. Raises UserError for an unknown kind, setting or
    value."""
    if kind not in KINDS:
        raise UserError(
            f"env textworld:{kind}: unknown{did_you_mean(kind, list(KINDS))}; it must be one of "
            f"{', '.join(f'textworld:{name}' for name in KINDS)}"
        )
    known = KINDS[kind]
    for name, value in given.items():
        if name not in known:
            raise UserError(
                f"env option {name}: unknown; the settings of textworld:{kind} are "
                f"{', '.join(known)}"
            )
        allowed = known[name][1]
        if isinstance(allowed, range):
            requirements.integer(name, value, allowed[0], allowed[-1])
        else:
            requirements.choice(name, value, allowed)
    return {name: default for name, (default, _) in known.items()} | given


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
    """Removes the banner, the status line and what follows the end from the game's text."""
    banner = text.rfind("$$")
    if banner >= 0:
        text = text[banner:].partition("\n")[2]
    text = text.partition("*** ")[0]
    return re.sub(r"\n{2,}", "\n", _STATUS.sub("", text)).strip().removesuffix(">").strip()
