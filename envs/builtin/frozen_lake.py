"""The world `frozen_lake`: from one corner of a lake to the other. A hole ends the attempt.

The rules are those of Gymnasium's FrozenLake, but every seed has its own holes. There is always a
way to the goal.
"""

import random
from functools import lru_cache

from envs.builtin.grid_world import DIRECTIONS, Board, GridWorld, beside
from envs.requirements import choice, integer

SHORTER = 0.99
"""The worth of a goal that is one step further away, relative to that of the nearer one."""


class FrozenLake(GridWorld):
    """A lake of `size` by `size` cells with `holes` holes (default: `size`).

    `map`: whether the whole map is shown, or hidden except for the cells that the player has
    visited. `slippery`: whether two of three steps slip sideways. `steps`: step limit (default: 4
    times `size`).
    """

    words = (
        "you go up down left right slip fall fell into a hole reach reached did not the goal edge "
        "stops"
    )

    def __init__(
        self,
        *,
        size: int = 4,
        holes: int | None = None,
        map: str = "shown",
        slippery: bool = False,
        steps: int | None = None,
        max_response_tokens: int = 32,
    ) -> None:
        integer("size", size, 2, 9)
        most = size * size // 3  # with many more, hardly a lake has a way to the goal
        self.count = integer("holes", min(size, most) if holes is None else holes, 0, most)
        choice("map", map, ("shown", "hidden"))
        choice("slippery", slippery, (False, True))
        self.hidden, self.slippery = map == "hidden", slippery
        steps = 4 * size if steps is None else integer("steps", steps, 2 * size - 2, 1000)
        legend = "P is you, F is ice, H is a hole, G is the goal"
        super().__init__(
            "frozen_lake",
            f"You cross a frozen lake. {legend}{', ? is not known' if self.hidden else ''}. "
            f"A hole ends the attempt.{' The ice is slippery.' if slippery else ''}",
            size,
            steps,
            max_response_tokens,
        )
        self.goal = size * size - 1
        self.holes: frozenset[int] = frozenset()

    def start(self, seed: int) -> Board:
        """Draws holes until there is a way to the goal within the step limit."""
        rng = random.Random(seed)
        while True:
            self.holes = frozenset(rng.sample(range(1, self.goal), self.count))
            if self.best((0,), self.spec.max_steps):
                return (0,)

    def moved(self, board: Board, direction: str) -> Board:
        return (beside(board[0], direction, self.size),)

    def outcome(self, board: Board, direction: str) -> Board:
        """Slips as seed and step number decide, so that a replay slips alike."""
        if not self.slippery:
            return self.moved(board, direction)
        rng = random.Random(f"{self.state.seed}/{len(self.state.taken)}")
        return self.moved(board, rng.choice([direction, *_sides(direction)]))

    def remark(self, before: Board, after: Board, direction: str) -> str:
        if self.won(after):
            return "you reach the goal."
        if self.lost(after):
            return f"you fall into a hole at {self.place(after)}."
        if after == before:
            return "the edge stops you."
        slipped = after != self.moved(before, direction)
        return "you slip." if slipped else f"you go {direction}."

    def won(self, board: Board) -> bool:
        return board[0] == self.goal

    def lost(self, board: Board) -> bool:
        return board[0] in self.holes

    def best(self, board: Board, left: int) -> list[str]:
        worths = _worths(self.size, self.holes, self.slippery, self.spec.max_steps)
        now, later = (worths[min(steps, len(worths) - 1)] for steps in (left, left - 1))
        if self.won(board) or not now[board[0]]:
            return []
        gains = {way: self._gain(later, board, way) for way in DIRECTIONS}
        return [way for way, gain in gains.items() if gain > max(gains.values()) - 1e-12]

    def symbol(self, cell: int) -> str:
        if cell == self.state.board[0]:
            return "P"
        seen = {board[0] for board, _ in self.state.taken}
        if self.hidden and cell not in seen:
            return "?"
        return "G" if cell == self.goal else "H" if cell in self.holes else "F"

    def feedback(self) -> str:
        if self.state.won:
            return "you reached the goal."
        return "you fell into a hole." if self.state.lost else "you did not reach the goal."

    def _gain(self, later: list[float], board: Board, direction: str) -> float:
        """Returns the mean worth of the cells that a step in a direction may lead to."""
        ways = [direction, *_sides(direction)] if self.slippery else [direction]
        return sum(later[self.moved(board, way)[0]] for way in ways) / len(ways)


def _sides(direction: str) -> list[str]:
    """Returns the two directions at a right angle to a direction."""
    return ["left", "right"] if direction in ("up", "down") else ["up", "down"]


@lru_cache
def _neighbours(size: int) -> list[dict[str, int]]:
    """Returns the neighbouring cell of each cell, by direction."""
    cells = range(size * size)
    return [{way: beside(cell, way, size) for way in DIRECTIONS} for cell in cells]


@lru_cache(maxsize=4096)
def _worths(size: int, holes: frozenset[int], slippery: bool, steps: int) -> list[list[float]]:
    """Returns what each cell is worth with 0, 1, … steps left, up to `steps` or to where that
    changes nothing. It is the probability that the best play reaches the goal, times SHORTER for
    each step."""
    goal, neighbours = size * size - 1, _neighbours(size)
    worths = [[float(cell == goal) for cell in range(goal + 1)]]
    while len(worths) <= steps and worths[-1:] != worths[-2:-1]:
        then, now = worths[-1], list(worths[0])
        for cell in set(range(goal)) - holes:
            to = {way: then[beyond] for way, beyond in neighbours[cell].items()}
            if slippery:
                to = {way: (to[way] + sum(to[s] for s in _sides(way))) / 3 for way in to}
            now[cell] = SHORTER * max(to.values())
        worths.append(now)
    return worths
