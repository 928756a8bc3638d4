"""The base of the worlds `frozen_lake` and `sokoban`: a player walks on a grid of cells.

    grid ─► direction ─► remark, grid ─► direction ─► remark, grid ─► …

A cell is its number, row by row. A board is the player's cell, then the cells of the boxes that it
can push. The reward is 1.0 for reaching the goal, else 0.0. Remarks say what happened, not what to
do.
"""

import json
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from envs.base import Skill
from envs.requirements import integer
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer
from r3l.rollout.reflection import FIELDS

DIRECTIONS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
SAY = "Say up, down, left or right."
OVER = "it is over."
PROMPTS = {
    "reflect_system": "Review this attempt and answer with one JSON object: trajectory_summary, "
    "root_cause_analysis, trajectory_outcome, improvement_suggestion, retry_from_step.",
    "reflect_user": "{log}\nreward {reward}.",
    "guidance": "advice: {improvement_suggestion}.",
}
Board = tuple[int, ...]
_DIRECTION = re.compile(rf"\b({'|'.join(DIRECTIONS)})\b")
_ADVICE = re.compile(r"at row (\d+) column (\d+) (go|not) (\w+)")


@dataclass
class State:
    """The state of an attempt. `taken`: for each step, the board before it and its direction ("" if
    it had none)."""

    seed: int = 0
    board: Board = (0,)
    taken: list[tuple[Board, str]] = field(default_factory=list)
    won: bool = False
    lost: bool = False
    ended: bool = True


class GridWorld(ABC):
    """A world on a grid of `size` by `size` cells. `steps`: step limit. A subclass has the rules:
    `start`, `moved`, `remark`, `won`, `lost`, `best`, `symbol` and `feedback`."""

    in_process = True
    words = ""
    """All words of remarks and closing remarks."""
    hidden = False
    """Whether the grid hides what a direction leads to. Advice then only rules directions out."""

    def __init__(
        self, name: str, system_prompt: str, size: int, steps: int, max_response_tokens: int
    ) -> None:
        self.size = size
        self.spec = EnvSpec(
            name=name,
            system_prompt=f"{system_prompt} {SAY}",
            max_steps=integer("steps", steps, 1, 1000),
            max_response_tokens=integer("max_response_tokens", max_response_tokens, 4, 100_000),
            prompts=PROMPTS,
        )
        self.state = State()

    @abstractmethod
    def start(self, seed: int) -> Board:
        """Makes the level of a seed. Returns its first board."""

    @abstractmethod
    def moved(self, board: Board, direction: str) -> Board:
        """Returns the board after a step in a direction."""

    @abstractmethod
    def remark(self, before: Board, after: Board, direction: str) -> str:
        """Says what a step did."""

    @abstractmethod
    def won(self, board: Board) -> bool:
        """Whether the goal is reached."""

    @abstractmethod
    def lost(self, board: Board) -> bool:
        """Whether the goal can no longer be reached, so that the attempt ends."""

    @abstractmethod
    def best(self, board: Board, left: int) -> list[str]:
        """Returns the directions that lead to the goal soonest. `left`: how many steps are left. If
        the goal is out of reach, returns []."""

    @abstractmethod
    def symbol(self, cell: int) -> str:
        """Returns the letter that shows a cell."""

    @abstractmethod
    def feedback(self) -> str:
        """Returns a closing remark."""

    def outcome(self, board: Board, direction: str) -> Board:
        """Returns the board that a step leads to. It differs from `moved` on slippery ground."""
        return self.moved(board, direction)

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Starts the level that `seed` determines."""
        self.state = State(seed, self.start(seed), ended=False)
        return self._view(), self._info()

    def step(self, action: str) -> StepAnswer:
        """Takes the last direction that the response names."""
        state, before = self.state, self.state.board
        if state.ended:
            return OVER, 0.0, True, False, {}
        direction = direction_in(action)
        if direction:
            state.board = self.outcome(before, direction)
            remark = self.remark(before, state.board, direction)
        else:
            remark = f'"{" ".join(action.split())[:40]}" is not understood. {SAY}'
        state.taken.append((before, direction))
        state.won, state.lost = self.won(state.board), self.lost(state.board)
        terminated = state.won or state.lost
        truncated = not terminated and len(state.taken) >= self.spec.max_steps
        state.ended = terminated or truncated
        then = OVER if state.ended else self._view()
        return f"{remark} {then}", float(state.won), terminated, truncated, self._info()

    def close(self) -> None:
        """Ends the attempt."""
        self.state.ended = True

    def snapshot(self) -> bytes:
        return json.dumps(vars(self.state)).encode()

    def restore(self, state: bytes) -> None:
        found = State(**json.loads(state))
        self.start(found.seed)
        found.board = tuple(found.board)
        found.taken = [(tuple(board), direction) for board, direction in found.taken]
        self.state = found

    def demonstration(self) -> list[str]:
        """Returns directions that reach the goal, or [] if the demonstrator would miss it because
        it slips."""
        kept, rng, actions = self.snapshot(), random.Random(0), list[str]()
        while not self.state.ended:
            actions.append(self.demonstrate(Skill(), rng))
            self.step(actions[-1])
        won = self.state.won
        self.restore(kept)
        return actions if won else []

    def demonstrate(self, skill: Skill, rng: random.Random, advice: str = "") -> str:
        """Returns a demonstrator's next direction (envs.base.Demonstrating). It knows all rules.

        A mistake is a random direction; a wasted step is a direction that does not lose the
        attempt.
        """
        board, left, draw = self.state.board, self._left(), rng.random()
        best = self.best(board, left) or list(DIRECTIONS)
        advised = [
            word for row, column, verb, word in _ADVICE.findall(advice)
            if verb == "go" and word in best and self.place(board) == f"row {row} column {column}"
        ]  # fmt: skip
        if advised:
            return str(advised[0])
        if draw < skill.waste:
            safe = [way for way in DIRECTIONS if self.best(self.moved(board, way), left - 1)]
            return rng.choice(safe or best)
        return rng.choice(list(DIRECTIONS)) if draw > 1 - skill.mistakes else best[0]

    def reflection(self) -> dict[str, Any]:
        """Returns a teacher's reflection.

        After a loss, the retry starts at the step that made the goal unreachable. Otherwise it
        starts at the first step that was not a best one.
        """
        state, total = self.state, len(self.state.taken)
        wrong = [k for k in range(total) if not self._right(k)]
        if state.won and not wrong:
            fields: tuple[Any, ...] = (f"{total} steps, the goal", None, "success", None, None)
            return dict(zip(FIELDS, fields, strict=True))
        pivot = wrong[0] if wrong else total - 1
        if state.lost:
            reached = [k for k in range(total) if self.best(state.taken[k][0], self._left(k))]
            pivot = reached[-1] if reached else pivot
        outcome = "success_but_inefficient" if state.won else "failure"
        ended = "the goal" if state.won else self.feedback().rstrip(".")
        board, direction = state.taken[pivot]
        fault = f"step {pivot} was {direction or 'no direction'} at {self.place(board)}"
        fields = (f"{total} steps, {ended}", fault, outcome, self._advice(pivot), pivot)
        return dict(zip(FIELDS, fields, strict=True))

    def vocabulary(self) -> Iterable[str]:
        """Returns texts that together contain every word that the world uses."""
        own = ("row column at go not steps the goal step was no direction you are is understood",)
        return [*own, self.words, OVER, self.spec.system_prompt, *self.spec.prompts.values()]

    def place(self, board: Board) -> str:
        """Says where the player is."""
        row, column = divmod(board[0], self.size)
        return f"row {row} column {column}"

    def _left(self, step: int | None = None) -> int:
        """Returns how many steps are left before step `step`, by default now."""
        return self.spec.max_steps - (len(self.state.taken) if step is None else step)

    def _right(self, step: int) -> bool:
        """Whether a step was one of the best."""
        board, direction = self.state.taken[step]
        return direction in self.best(board, self._left(step))

    def _advice(self, step: int) -> str:
        board, direction = self.state.taken[step]
        best = self.best(board, self._left(step))
        if direction and (self.hidden or not best):
            return f"at {self.place(board)} not {direction}"
        return f"at {self.place(board)} go {(best or list(DIRECTIONS))[0]}"

    def _view(self) -> str:
        lines = [f"you are at {self.place(self.state.board)}."]
        for row in range(self.size):
            cells = range(row * self.size, (row + 1) * self.size)
            lines.append(f"row {row}: {' '.join(map(self.symbol, cells))}")
        return "\n".join(lines)

    def _info(self) -> dict[str, Any]:
        return {"admissible": [] if self.state.ended else list(DIRECTIONS)}


def direction_in(response: str) -> str:
    """Returns the last direction that a response names, or "" if it names none."""
    found = _DIRECTION.findall(response.lower())
    return str(found[-1]) if found else ""


def beside(cell: int, direction: str, size: int) -> int:
    """Returns the neighbouring cell in a direction, or the cell itself at the edge."""
    (row, column), (down, right) = divmod(cell, size), DIRECTIONS[direction]
    inside = 0 <= row + down < size and 0 <= column + right < size
    return cell + down * size + right if inside else cell
