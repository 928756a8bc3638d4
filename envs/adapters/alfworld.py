"""ALFWorld: household tasks in text (MIT). Games run without the planner fast-downward (GPL-3).
Needs `pip install 'r3l[alfworld]'`, and the data from `alfworld-download`.

A step is one command. The reward is 1 when the task is done. The commands that a game understands
are read from the game, because data releases word them differently.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from envs import requirements
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, action_in
from envs.base import ListedTasks, TaskSource
from r3l.errors import EnvironmentFailed
from r3l.records import Task
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

SYSTEM = (
    "You do a household task in a simulated house, in text. Look for what you need, take it, "
    "treat it as asked (clean it in a sink, heat it in a microwave, cool it in a fridge, look at "
    "it under a lamp), and put it where it belongs. You carry one thing at a time. "
    + HOW_TO_ANSWER.format(example="go to shelf 1")
)
PROMPTS = {
    "reflect_user": "{log}\nReward {reward}. Steps are numbered 0 to {last_step}; "
    'retry_from_step must be one of them or null. "Nothing happens." says that a command could '
    "not be carried out, but not why: work out from the steps before it what was missing, such "
    "as not standing there, a closed door, hands that are full, or other words."
}
GET = "run alfworld-download, or set ALFWORLD_DATA to a folder that holds json_2.1.1/train"
FOLDERS = ("json_2.1.1", "json_2.1.3")
EVAL_SPLITS = ("valid_unseen", "valid_seen")


class AlfWorld:
    """Plays the games in the folder `data`, by default $ALFWORLD_DATA.

    `eval_split`: valid_unseen or valid_seen; `admissible`: append the possible commands to every
    observation; `max_steps`: command limit.
    """

    def __init__(
        self,
        *,
        data: str = "",
        eval_split: str = "valid_unseen",
        admissible: bool = False,
        max_steps: int = 25,
    ) -> None:
        self.library = requirements.package("alfworld", "textworld", "alfworld")
        requirements.package("alfworld", "alfworld", "alfworld")
        requirements.choice("eval_split", eval_split, EVAL_SPLITS)
        self.root, self.admissible = _root(data), admissible
        self.spec = EnvSpec(
            name="alfworld",
            system_prompt=SYSTEM,
            max_steps=max_steps,
            max_response_tokens=512,
            sessions=8,
            prompts=PROMPTS,
        )
        self.game: Any = None
        self.file = ""
        self.state: Any = None

    @staticmethod
    def task_source(data: str = "", eval_split: str = "valid_unseen", **_: Any) -> TaskSource:
        """Returns the solvable games: train for training, `eval_split` for evaluation."""
        root = _root(data)
        requirements.choice("eval_split", eval_split, EVAL_SPLITS)
        return ListedTasks({"train": _games(root, "train"), "eval": _games(root, eval_split)})

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Starts the game in `options["game"]` (a file), or else the training game of `seed`."""
        if not (options and options.get("game")):
            options = self.task_source(str(self.root)).tasks("train", 1, seed)[0].options
        chosen = str(options["game"])
        if self.game is None or chosen != self.file:
            self.close()
            self.game, self.file = self._start(self.root / chosen), chosen
        self.state = self.game.reset()
        text = self.state.feedback.partition("=-\n")[2] or self.state.feedback
        return self._seen(f"{text.strip()}\n{_commands(self.state)}"), self._info()

    def step(self, action: str) -> StepAnswer:
        command = action_in(action)
        if command is None:
            return self._seen(NO_ACTION), 0.0, False, False, self._info()
        self.state, _, done = self.game.step(command)
        won = bool(self.state.won)
        text = self._seen(self.state.feedback.strip() or "Nothing happens.")
        return text, float(won), won or bool(done), False, self._info()

    def feedback(self) -> str:
        return "The task is done." if self.state.won else "The task is not done."

    def close(self) -> None:
        if self.game is not None:
            self.game.close()
            self.game = None

    def _start(self, file: Path) -> Any:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

        if not file.is_file():
            raise EnvironmentFailed(f"alfworld: game {file} does not exist", cause="no_game")
        shown = ("feedback", "won", "score", "admissible_commands", "command_templates")
        infos = self.library.EnvInfos(**dict.fromkeys(shown, True))
        return self.library.start(str(file), infos, wrappers=[AlfredDemangler()])

    def _info(self) -> dict[str, Any]:
        return {"admissible": sorted(self.state.admissible_commands or [])}

    def _seen(self, text: str) -> str:
        if not self.admissible:
            return text
        return f"{text}\nPossible now: {', '.join(self._info()['admissible'])}."


def _commands(state: Any) -> str:
    """Lists the commands that this game understands, with PLACE and THING as placeholders."""
    commands = set()
    for template in state.command_templates:
        if "outer" not in template:  # movable receptacles are in none of the games played
            named = re.sub(r"\[.*?\]|\{r\}", "PLACE", template)
            commands.add(re.sub(r"\{\w+\}", "THING", named))
    return f"Commands: {', '.join(sorted(commands))}."


def _root(data: str) -> Path:
    """Returns the folder that contains train/: `data` (default: $ALFWORLD_DATA) or a subfolder."""
    given = data or os.environ.get("ALFWORLD_DATA", "")
    if given:
        path = Path(given).expanduser()
        for folder in (path, *(path / name for name in FOLDERS)):
            if (folder / "train").is_dir():
                return folder.resolve()
    return requirements.folder("alfworld", "data", given, "json_2.1.1/train", GET)


def _games(root: Path, folder: str) -> list[Task]:
    """Lists the games that upstream plays: solvable, without movable receptacles or slicing."""
    tasks: list[Task] = []
    for file in sorted((root / folder).rglob("game.tw-pddl")):
        kind, trial = file.parts[-3:-1]
        if "movable" in kind or "Sliced" in kind:
            continue
        # A file without this key has an unreachable goal and does not load.
        if json.loads(file.read_text(encoding="utf-8")).get("solvable") is True:
            family = kind.partition("-")[0]
            options = {"game": str(file.relative_to(root)), "family": family}
            tasks.append(Task(f"alfworld/{folder}/{kind}/{trial}", "alfworld", len(tasks), options))
    return tasks
